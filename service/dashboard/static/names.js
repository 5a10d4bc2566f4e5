// The names of a stream's columns and classes, for people. Streams without names show places and numbers.

const KEEP_COLUMNS = ["standardize", "clipped_scale", "center", "normalize"];
const steps = (map) => map?.maps ?? (map ? [map] : []);
const at = (setting, index) => (Array.isArray(setting) ? setting[index] : setting);

/** The columns of a mapped record; null where they have no names, or the feature map mixes them. */
export const mappedColumns = ({ columns, feature_map: map }) =>
  columns && steps(map).every(({ kind }) => KEEP_COLUMNS.includes(kind)) ? columns : null;

/** Returns whether the x of a record consists of texts. */
export function readsText({ feature_map: map }) {
  const [step] = steps(map);
  return step?.kind === "hashing" && step.tokens !== "categories";
}

/** Returns the function from a mapped number to the sent one; null where the map does more than shift and scale. */
export function sent({ feature_map: map }) {
  const [step, more] = steps(map);
  if (!step) return (value) => value;
  if (more || step.kind !== "standardize") return null;
  return (value, index) => value * at(step.scale, index) + at(step.mean, index);
}

export const columnText = ({ name, unit, range }) =>
  [name, unit ? ` (${unit})` : "", range ? ` from ${range[0]} to ${range[1]}` : ""].join("");

/** Returns rows of settings: the names of columns and of classes, at most that many of each. */
export const named = ({ columns, class_names: classes }, most = Infinity) => [
  ...(columns ? [["Columns", listed(columns.map(columnText), most)]] : []),
  ...(classes ? [["Classes", listed(classes.map((name, number) => `${number} ${name}`), most)]] : []),
];

const listed = (names, most) =>
  names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
