// Commands that people copy into a shell. Names that others chose are text there, and run nothing.
import { root } from "./api.js";

/** A text as one word of a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Sends a JSON text to an address of the interface, with the key in $KEY. */
export const post = (path, body) =>
  `curl ${quoted(location.origin + root + path)} -H "Authorization: Bearer $KEY" \\
  -H 'Content-Type: application/json' \\
  -d ${quoted(body)}`;
