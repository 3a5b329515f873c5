"""Reading a store from outside, for `ebla store`."""
