// Commands for people to copy into a shell. Names that others chose are quoted, so that they run nothing.
import { root } from "./api.js";

/** Quotes a text as one word of a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Returns the curl command that posts a JSON text to an address, with the key in $KEY. */
export const post = (path, body) =>
  `curl ${quoted(location.origin + root + path)} -H "Authorization: Bearer $KEY" \\
  -H 'Content-Type: application/json' \\
  -d ${quoted(body)}`;
