"""Words of the project: identities, tokens, errors. Pure; imports nothing of ours."""
