"""The data model: identities, tokens, rows, schemas, errors. Pure; imports no other package of ours."""
