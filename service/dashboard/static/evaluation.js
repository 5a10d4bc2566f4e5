// How good models are, by releases of evaluations: of one publication, or of several side by side.

import { get } from "./api.js";
import { HUES, colour, draw, line } from "./charts.js";
import { $, amount, count, fact, h, replace, table, toPublication } from "./dom.js";

const MOST_BLOCKS = 200;
const MOST_BANDS = 4; // more bands hide each other
const MOST_CLASSES = 12; // whose recalls are listed
const MOST_COMPARED = 8; // which the service compares pair by pair
const FALSE_ALARMS = "a false alarm of drift in at most 1 of 1,000 blocks"; // as drift.py states
const AXIS = { title: { text: "records", standoff: 4 } };

const whole = (share) => Math.round(100 * share);
const percent = (share) => `${whole(share)} %`;
const points = (share) => (Math.abs(whole(share)) === 1 ? `${whole(share)} point` : `${whole(share)} points`);
const signed = (text) => (text.startsWith("-") ? `−${text.slice(1)}` : `+${text}`);

/** Returns a figure's key, title and format: accuracy for classes, error for regressions. */
const kind = (figures) =>
  "accuracy" in figures
    ? { key: "accuracy", title: "Accuracy", text: percent, between: (low, high) => `${whole(low)} to ${percent(high)}` }
    : { key: "absolute_error", title: "Error", text: amount, between: (low, high) => `${amount(low)} to ${amount(high)}` };

/** Returns the figures to show: of the newest blocks together, or of the newest alone where it is worse than before. */
const telling = (told) => (told.recent?.blocks > 1 && !told.drift && !told.worse ? told.recent : told);

const where = (figures, told) => {
  if (figures !== told) return ` in the last ${count(figures.blocks)} blocks`;
  return told.recent?.blocks > 1 ? " in the newest block" : "";
};

/** Returns one sentence on how good a publication is, and whether it becomes worse. */
export function sentence(told) {
  const { key, text, between } = kind(told);
  if (told[key] === null) return "It had no model yet when it was last evaluated.";
  const figures = telling(told);
  const interval = `(${between(figures.low, figures.high)})`;
  if (key === "absolute_error") return `Off by ${text(told[key])} on average ${interval}.`;
  return `Right for ${text(figures[key])} of records${where(figures, told)} ${interval}, ${above(figures)}; ${trend(told)}.`;
}

function above({ accuracy, baseline, low, high, lift }) {
  const gap = lift ? lift.estimate : accuracy - baseline;
  const [least, most] = lift ? [lift.low, lift.high] : [low - baseline, high - baseline];
  if (least > 0) return `${points(gap)} above always saying the commonest class`;
  if (most < 0) return `${points(-gap)} below always saying the commonest class`;
  return "not shown to be better than always saying the commonest class";
}

function trend({ drift, worse }) {
  if (drift) return "clearly worse than in the blocks before";
  if (worse) return "clearly worse than the version before";
  return drift === null ? "too early to see drift" : "no drift seen";
}

/** Returns the blocks where a publication had a model, oldest first: figures, and the end of their records. */
const blocksOf = (releases, name) =>
  releases
    .map(({ fit, version, evaluation }) => ({ ...evaluation[name], end: fit.end, release: version }))
    .filter((block) => block.version !== null);

const changed = (blocks) => blocks.map(({ version }, index) => index > 0 && version !== blocks[index - 1].version);

/** Lines of one publication: its band, if it has room, and its figures; a diamond marks the first block of a version. */
function traces(name, blocks, { hue, fill }) {
  const { key, title, text, between } = kind(blocks[0]);
  const at = blocks.map((block) => block.end);
  const edge = { mode: "lines", line: { width: 0, shape: "linear" }, hoverinfo: "skip" };
  const news = changed(blocks);
  const band = [
    line(at, blocks.map((block) => block.low), edge),
    line(at, blocks.map((block) => block.high), { ...edge, fill: "tonexty", fillcolor: fill }),
  ];
  const figures = line(at, blocks.map((block) => block[key]), {
    name,
    mode: "lines+markers",
    line: { color: hue, shape: "linear" },
    marker: {
      size: news.map((isNew) => (isNew ? 10 : 6)),
      symbol: news.map((isNew) => (isNew ? "diamond" : "circle")),
      color: hue,
      opacity: 1,
      line: { width: 0 },
    },
    text: blocks.map((block) => `${text(block[key])}, ${between(block.low, block.high)}, version ${count(block.version)}`),
    hovertemplate: `${title} %{text}<extra>%{fullData.name}</extra>`,
  });
  return [...(fill ? band : []), figures];
}

const baseline = (blocks) =>
  blocks[0].baseline === undefined
    ? []
    : [
        line(blocks.map((block) => block.end), blocks.map((block) => block.baseline), {
          name: "commonest class",
          line: { color: colour("muted"), dash: "dash", width: 1.5, shape: "linear" },
          hovertemplate: "commonest class %{y:.0%}<extra></extra>",
        }),
      ];

/** Returns the axis of figures: for shares from a tenth below the lowest to 1, for errors from 0. */
function scale(blocks) {
  if (kind(blocks[0]).key !== "accuracy") return { rangemode: "tozero" };
  const least = Math.min(...blocks.flatMap(({ low, baseline }) => [low, baseline]));
  return { tickformat: ".0%", range: [Math.max(0, Math.floor(10 * least) / 10 - 0.1), 1.02] };
}

/** Shows how good a publication is, where an evaluation counts it. */
export async function judged({ name, stream, evaluation: told }, { class_names: classes }) {
  $("quality").hidden = !told;
  if (!told) return;
  const at = `/v1/publications/${told.publication}`;
  const [evaluation, { items }] = await Promise.all([get(at), get(`${at}/releases?limit=${MOST_BLOCKS}`)]);
  const blocks = evaluation.stream === stream ? blocksOf(items.toReversed(), name) : []; // else another one of the name
  replace($("quality-said"), sentence(told));
  replace($("quality-by"), toPublication(told.publication, stream));
  replace($("quality-facts"), ...details(told, classes));
  $("quality-table").hidden = !told.table || told.table.length > MOST_CLASSES;
  if (!$("quality-table").hidden) replace($("quality-table"), ...confusion(told.table, classes));
  $("quality-chart").hidden = blocks.length === 0;
  if (blocks.length === 0) return;
  const { title } = kind(told);
  replace($("quality-key"), keyOf(blocks, title, told));
  await draw($("quality-chart"), {
    said: `${title} by records, over ${count(blocks.length)} blocks. ${sentence(told)}`,
    traces: () => [
      ...traces(name, blocks, { hue: colour("accent"), fill: colour("accent-soft") }),
      ...baseline(blocks),
    ],
    layout: () => ({ xaxis: AXIS, yaxis: scale(blocks) }),
  });
}

const keyOf = (blocks, title, { drift = null } = {}) =>
  [
    `${title} of each block with its 95 % interval`,
    blocks[0].baseline !== undefined && "dashed: always saying the commonest class",
    changed(blocks).some(Boolean) && "◆ a new version",
    drift !== null && FALSE_ALARMS,
  ]
    .filter(Boolean)
    .join(" · ");

/** The other figures of the newest block. */
function details(told, classes) {
  const figure = (title, found) =>
    found && fact(title, percent(found.estimate), h("small", {}, `${whole(found.low)} to ${percent(found.high)}`));
  const recall = (told.recall?.length ?? 0) <= MOST_CLASSES ? (told.recall ?? []) : [];
  const { text, between, key } = kind(told);
  const interval = (found) => h("small", {}, `${signed(`${whole(found.low)}`)} to ${signed(points(found.high))}`);
  const lift = told.lift_over_previous;
  const counted = `${between(told.low, told.high)}, version ${count(told.version ?? 0)}, ${count(told.slots)} records`;
  return [
    told.version !== null && fact("Newest block", text(told[key]), h("small", {}, counted)),
    lift && fact("Against the version before", signed(points(lift.estimate)), interval(lift)),
    figure("Balanced accuracy", told.balanced_accuracy),
    figure("Calibration error", told.calibration_error),
    figure("Shortened to the norm", told.shortened),
    ...recall.map((found, label) => figure(`Recall of ${classes?.[label] ?? `class ${label}`}`, found)),
  ].filter(Boolean);
}

/** The noisy confusion table of the newest block. */
function confusion(counts, classes) {
  const named = (label) => classes?.[label] ?? `class ${label}`;
  const columns = counts.map((_, label) => ({ title: `predicted ${named(label)}`, number: true }));
  const rows = counts.map((row, label) => [named(label), ...row.map(count)]);
  return [
    h("summary", {}, "Which classes it takes for which"),
    table("Noisy counts of records of the newest block", [{ title: "Label" }, ...columns], rows),
  ];
}

/**
 * Returns the figures that compare publications: those that `telling` chooses. It returns the newest block's if `telling`
 * chooses them for any publication, or if any name means a publication of another stream.
 */
async function comparable(evaluation, stream, newest) {
  const known = Object.keys(newest).filter((name) => newest[name].version !== null);
  if (known.length > MOST_COMPARED) return newest;
  const publications = await Promise.all(known.map((name) => get(`/v1/publications/${name}`)));
  const told = publications.map((publication) => (publication.stream === stream ? publication.evaluation : null));
  if (told.some((recent) => recent?.publication !== evaluation || telling(recent) === recent)) return newest;
  return { ...newest, ...Object.fromEntries(known.map((name, index) => [name, { ...newest[name], ...told[index].recent }])) };
}

/** Returns a sentence on which publication is best: by paired differences where released, else by intervals. */
export function comparison(figures) {
  const known = Object.entries(figures).filter(([, { version }]) => version !== null);
  if (known.length === 0) return "No publication had a model yet.";
  const { key, text } = kind(known[0][1]);
  const sign = key === "accuracy" ? 1 : -1; // an error is the better the smaller it is
  const [[best, first], ...others] = known.toSorted(([, a], [, b]) => sign * (b[key] - a[key]));
  const blocks = first.blocks > 1 ? ` in the last ${count(first.blocks)} blocks` : "";
  const figure = `${text(first[key])}${key === "accuracy" ? " of records right" : " off on average"}${blocks}`;
  if (others.length === 0) return `${best}: ${figure}.`;
  const apart = (other) => (sign > 0 ? first.low > other.high : first.high < other.low);
  const beaten = others.filter(([name, other]) => apart(other) || first.better_than?.[name].low > 0);
  if (beaten.length === others.length) return `${best} is the best, with ${figure}${ahead(first, others[0])}.`;
  const open = others.filter((other) => !beaten.includes(other)).map(([name]) => name);
  return `${best} leads with ${figure}, but is not shown to be better than ${open.join(", ")}.`;
}

function ahead(first, [name]) {
  const gap = first.better_than?.[name];
  return gap ? `: ${whole(gap.low)} to ${points(gap.high)} more than ${name}` : "";
}

const COLUMNS = (title) => [
  { title: "Publication" },
  { title: "Version", number: true, extra: true },
  { title, number: true },
  { title: "95 % interval", number: true },
];

const swatch = (hue) => {
  const mark = h("span", { class: "hue" });
  mark.style.background = hue;
  return mark;
};

/** Shows all publications that an evaluation counts, side by side. */
export async function compared({ name, stream, mechanism }) {
  const found = mechanism.kind === "evaluation" && (await get(`/v1/publications/${name}/releases?limit=${MOST_BLOCKS}`)).items;
  $("compared").hidden = !found?.length;
  if ($("compared").hidden) return;
  const { evaluation: newest } = await get(`/v1/publications/${name}/releases/${found[0].version}`);
  const names = mechanism.of.filter((name) => newest[name]);
  const hue = (publication) => HUES[names.indexOf(publication) % HUES.length];
  const { title, key, text, between } = kind(newest[names[0]]);
  const figures = await comparable(name, stream, newest);
  const row = (publication) => {
    const { version, low, high, [key]: value } = figures[publication];
    const none = version === null;
    return [[swatch(hue(publication)), toPublication(publication, stream)], none ? "none yet" : count(version), none ? "–" : text(value), none ? "–" : between(low, high)];
  };
  const caption = names.some((name) => figures[name].blocks > 1)
    ? "Publications, by their newest blocks together"
    : "Publications in the newest block";
  replace($("compared-said"), comparison(figures));
  replace($("compared-table"), table(caption, COLUMNS(title), names.map(row)));
  const lines = names.map((name) => [name, blocksOf(found.toReversed(), name)]).filter(([, blocks]) => blocks.length);
  $("compared-chart").hidden = lines.length === 0;
  if (lines.length === 0) return;
  const longest = lines.map(([, blocks]) => blocks).reduce((a, b) => (b.length > a.length ? b : a));
  replace($("compared-key"), keyOf(longest, title));
  await draw($("compared-chart"), {
    said: `${title} of ${names.join(", ")} by records. ${comparison(figures)}`,
    traces: () => [
      ...lines.flatMap(([name, blocks]) =>
        traces(name, blocks, { hue: hue(name), fill: lines.length <= MOST_BANDS && `${hue(name)}2b` }),
      ),
      ...baseline(longest),
    ],
    layout: () => ({ xaxis: AXIS, yaxis: scale(lines.flatMap(([, blocks]) => blocks)), hovermode: "closest" }),
  });
}
