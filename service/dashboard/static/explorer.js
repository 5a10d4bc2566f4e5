import { download, get, regularly, save, send } from "./api.js";
import { HUES, colour, draw, line, picture } from "./charts.js";
import { $, amount, count, counted, h, meter, notice, pill, replace, table, when } from "./dom.js";
import { failed, frame } from "./frame.js";

const at = "/v1/explorer";
const SCORES = ["accuracy", "precision", "recall", "specificity", "f1", "mcc"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,1px", "1px,3px"]; // an ε each

const WEATHER = { kind: "standardize", mean: [54, 44, 1017, 10, 8, 14, 64, 44], scale: [20, 20, 8.4, 4, 4.5, 6, 22, 20] };
const MAPS = {
  none: ["As they are", () => null],
  weather: ["Weather, put near [−1, 1] by public constants", () => WEATHER],
  normalize: ["Each record at length 1", () => ({ kind: "normalize" })],
  hog: ["Pictures: histograms of gradients", ({ features }) => {
    const side = Math.round(Math.sqrt(features));
    return { kind: "compose", maps: [{ kind: "hog", width: side, height: side }, { kind: "normalize" }, { kind: "center" }, { kind: "normalize" }] };
  }],
  fourier: ["Random Fourier features, 200", () => ({ kind: "random_fourier", features: 200, width: 1 })],
};
const SUITED = { weather: ["weather", 3], fashion: ["hog", 1] }; // map and norm bound of the samples

/** Returns an offer as a line of a comparison, with that many records a release. */
function settingsOf({ mechanism: { kind, ...settings }, sizes, learner, delta }, records) {
  const sized = Object.fromEntries(Object.entries(sizes).map(([name, times]) => [name, times * records]));
  return { mechanism: { kind, ...sized, ...settings }, learner, delta };
}

let datasets = { samples: [], items: [], offers: [] };
const shapes = { weather: { records: 18159, features: 8, classes: 2 }, fashion: { records: 2000, features: 784, classes: 10 } };
/** The chosen data set, if somebody uploaded it. */
const mine = () => datasets.items.find((dataset) => String(dataset.id) === $("dataset").value);
const chosen = () => mine() ?? shapes[$("dataset").value];

let [looks, newest] = [0, 0];
/** Looks up the data sets and chooses one. The first two lines come with the first answer. */
async function data(selected) {
  const number = ++looks;
  const answer = await get(`${at}/datasets`);
  if (number > newest) [datasets, newest] = [answer, number]; // an older one may lack what was uploaded since
  const before = $("dataset").value;
  const keep = selected ?? before;
  $("dataset").replaceChildren(
    ...datasets.samples.map(({ name }) => h("option", { value: name }, `${name} (sample)`)),
    ...datasets.items.map(({ id, name }) => h("option", { value: id }, name)));
  if (keep) $("dataset").value = keep;
  if (!$("dataset").value) $("dataset").selectedIndex = 0;
  if ($("dataset").value !== before) suit();
  if ($("lines").children.length === 0) for (const { name } of datasets.offers.slice(0, 2)) another(name);
}

/** Shows the description and the suitable settings of the chosen data set. */
function suit() {
  const { records, features, classes } = chosen();
  const about = datasets.samples.find((sample) => sample.name === $("dataset").value)?.about ?? "";
  $("dataset-said").textContent = `${about} ${counted(records, "record")}, ${counted(features, "feature")}, ${classes} classes`.trim();
  $("delete").hidden = mine() === undefined;
  const [map, bound] = SUITED[$("dataset").value] ?? ["none", 1];
  $("map").value = map;
  $("bound").value = bound;
  fill();
  for (const line of $("lines").children) line.suit();
}

/** Returns a suitable number of records a release for the chosen data set. */
const suitable = () => Math.max(10, 2 ** Math.round(Math.log2(chosen().records / 80)));

function fill() {
  const map = MAPS[$("map").value][1](chosen());
  $("map-json").value = map ? JSON.stringify(map, null, 1) : "";
}

let numbered = 0;
function another(kind) {
  const number = ++numbered;
  const field = (name, text, control, ...more) => h("div", {}, h("label", { for: `${name}-${number}` }, text), control, ...more);
  const pick = h("select", { id: `kind-${number}` }, datasets.offers.map(({ name, title }) => h("option", { value: name, selected: name === kind }, title)));
  const batch = h("input", { id: `size-${number}`, type: "number", min: 1, max: 1e9, value: suitable(), required: true });
  const name = h("input", { id: `name-${number}`, maxlength: 80, required: true });
  const json = h("textarea", { id: `json-${number}`, rows: 4, spellcheck: "false" });
  const written = () => {
    json.value = JSON.stringify(settingsOf(datasets.offers[pick.selectedIndex], Number(batch.value)), null, 1);
    name.value = `${pick.value.replaceAll("_", " ")}, ${batch.value}`;
  };
  pick.addEventListener("change", written);
  batch.addEventListener("input", written);
  const remove = h("button", { type: "button", class: "quiet", "aria-label": `Remove line ${number}`, onclick: () => { element.remove(); enough(); } }, "Remove");
  const element = h("fieldset", {}, h("legend", { class: "unseen" }, `Line ${number}`),
    h("div", { class: "fields" }, field("kind", "Mechanism", pick), field("size", "Records a release", batch), field("name", "Name", name), h("div", {}, remove)),
    h("details", {}, h("summary", {}, "All its settings, as JSON"), h("label", { class: "unseen", for: `json-${number}` }, `Settings of line ${number} as JSON`), json));
  let own = false; // settings that the user edited are not overwritten
  for (const input of [batch, name, json]) input.addEventListener("input", () => (own = true));
  element.suit = () => {
    if (own) return;
    batch.value = suitable();
    written();
  };
  element.asked = () => ({ name: name.value, ...parsed(json, `the settings of ${name.value}`) });
  written();
  $("lines").append(element);
  enough();
}

function enough() {
  const there = $("lines").children.length;
  $("more").disabled = there >= 6;
  for (const button of $("lines").querySelectorAll("button")) button.disabled = there < 2;
}

function parsed(area, what) {
  try {
    return JSON.parse(area.value);
  } catch {
    area.closest("details").open = true;
    area.focus();
    throw new Error(`This is no JSON: ${what}.`);
  }
}

const told = async (path, options) => (await send(path, options)).json();
const as = (body, type = "application/json") => ({ method: "POST", headers: { "Content-Type": type }, body });

async function compare() {
  const asked = {
    dataset: mine()?.id ?? $("dataset").value,
    feature_map: $("map-json").value.trim() ? parsed($("map-json"), "the feature map") : null,
    norm_bound: Number($("bound").value),
    lines: [...$("lines").children].map((line) => line.asked()),
    epsilons: $("epsilons").value.split(/[\s,;]+/).filter(Boolean).map(Number),
    runs: Number($("runs").value),
  };
  const made = await told(`${at}/explorations`, as(JSON.stringify(asked)));
  history.pushState(null, "", `#${made.id}`);
  await look();
  $("result").scrollIntoView();
  $("result-title").focus();
}

async function upload() {
  const file = $("file").files[0];
  if (!file) throw new Error("Choose a file first.");
  const name = [...file.name.replace(/[\p{Cc}\p{Zl}\p{Zp}\ufffd]/gu, " ")].slice(0, 80).join("");
  const query = new URLSearchParams({ name, ...($("label").value ? { label: $("label").value } : {}) });
  const kept = await told(`${at}/datasets?${query}`, as(file, file.name.endsWith(".npz") ? "application/x-npz" : "text/csv"));
  await data(String(kept.id));
  $("uploaded").textContent = `${kept.name} is there: ${counted(kept.records, "record")}. Only this key sees it.`;
}

async function drop() {
  const { id, name } = mine();
  if (!confirm(`Delete the data set ${name}? Comparisons with it that have not begun will fail; results stay.`)) return;
  try {
    await send(`${at}/datasets/${id}`, { method: "DELETE" });
  } finally {
    await data(); // also where it was deleted elsewhere
  }
  $("uploaded").textContent = `${name} is deleted.`;
  $("dataset").focus();
}

const median = (values) => {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const promise = (epsilon) => (epsilon === null ? "without noise" : `ε ${amount(epsilon)}`);

let shown = { found: [], comparison: { lines: [] } };

/** Returns the runs grouped by line and ε. */
function groups({ found }) {
  const by = Map.groupBy(found.filter((run) => run.scores), ({ line: number, epsilon }) => `${number} ${epsilon}`);
  return [...by.values()].sort(([a], [b]) => a.line - b.line || (b.epsilon ?? Infinity) - (a.epsilon ?? Infinity));
}

/** Returns why lines stopped, each reason with all ε at which it occurred. */
function problems({ found, comparison }) {
  const by = Map.groupBy(found.filter((run) => run.problem), ({ line: number, problem }) => `${number} ${problem}`);
  return [...by.values()].map((runs) => {
    const epsilons = [...new Set(runs.map((run) => promise(run.epsilon)))].join(", ");
    return `${comparison.lines[runs[0].line].name}, ${epsilons}: ${runs[0].problem}`;
  });
}

async function look() {
  const before = (await get(`${at}/explorations?limit=20`)).items;
  replace($("before"), before.length ? table("Comparisons, newest first", [{ title: "Number" }, { title: "Lines", wide: true }, { title: "State" }, { title: "Asked", extra: true }],
    before.map(({ id, comparison, state, created_at }) => [h("a", { href: `#${id}` }, count(id)), comparison.lines.map((line) => line.name).join(" · "), pill(state), when(created_at)]))
    : h("p", { class: "muted" }, "None yet. What you compare stays here; the last fifty are kept."));
  const wanted = Number(location.hash.slice(1));
  $("result").hidden ||= wanted !== shown.id; // its buttons are about what is known of it
  if (wanted) shown = await get(`${at}/explorations/${wanted}`);
  $("result").hidden = !wanted;
  if (!wanted) return;
  const { state, reason, done, cells, progress, comparison } = shown;
  const going = state === "waiting" || state === "running";
  const named = datasets.items.find((dataset) => dataset.id === comparison.dataset)?.name ?? comparison.dataset;
  $("result-title").textContent = `Comparison ${count(wanted)} on ${named}`;
  replace($("state"), pill(state));
  $("progress").textContent = `${done} of ${counted(cells, "run")}${going ? `, ${Math.floor(100 * progress)} %` : ""}`;
  const stopped = problems(shown);
  replace($("bar"), going && meter(progress, 0, 1, `${Math.floor(100 * progress)} % done`), reason && notice("bad", "It failed", reason), stopped.length > 0 && notice("warn", "Some could not go on", ...stopped));
  $("cancel").hidden = !going;
  const all = groups(shown);
  for (const id of ["csv", "json", "png"]) $(id).disabled = all.length === 0;
  replace($("scores"), table("Scores of the last release, medians of the runs",
    [{ title: "Line", wide: true }, { title: "Privacy" }, { title: "Runs", number: true, extra: true }, ...SCORES.map((score) => ({ title: score === "f1" || score === "mcc" ? score.toUpperCase() : score, number: true, extra: !["accuracy", "f1", "mcc"].includes(score) }))],
    all.map((runs) => [comparison.lines[runs[0].line].name, promise(runs[0].epsilon), count(runs.length), ...SCORES.map((score) => (score === "mcc" ? median(runs.map((run) => run.scores[score])).toFixed(3) : percent(median(runs.map((run) => run.scores[score])))))])));
  if (all.length || $("curves").data) charts(all, comparison).catch(failed); // no chart of another one stays
}

async function charts(all, { lines, epsilons }) {
  const order = epsilons.toSorted((a, b) => b - a);
  const look = (runs) => ({ color: HUES[runs[0].line], width: runs[0].epsilon === null ? 3 : 1.6, dash: runs[0].epsilon === null ? "solid" : DASHES[1 + order.indexOf(runs[0].epsilon)] ?? "dot", shape: "linear" });
  const named = (runs) => `${lines[runs[0].line].name}, ${promise(runs[0].epsilon)}`;
  const curve = (runs) => {
    const times = runs[0].curve.map(([time]) => time);
    return [times, times.map((_, index) => median(runs.map((run) => run.curve[index]?.[1]).filter((value) => value !== undefined)))];
  };
  const last = (runs) => median(runs.map((run) => run.scores.accuracy));
  const axis = { tickformat: ".0%", rangemode: "normal" };
  const legend = { showlegend: true, legend: { orientation: "h", y: -0.25, font: { size: 11 } }, hovermode: "closest" };
  const best = all.map((runs) => `${named(runs)} ${percent(last(runs))}`).join("; ") || "nothing yet";
  await Promise.all([
    draw($("curves"), {
      said: `Accuracy of the latest release on records held out, by records that came in. At the end: ${best}.`,
      traces: () => all.map((runs) => line(...curve(runs), { name: named(runs), line: look(runs), hovertemplate: "%{y:.1%} after %{x:,}<extra>%{fullData.name}</extra>" })),
      layout: () => ({ xaxis: { title: { text: "records", standoff: 4 } }, yaxis: axis, ...legend }),
    }),
    draw($("tradeoff"), {
      said: `Accuracy of the last release by ε: ${best}.`,
      traces: () => lines.flatMap(({ name }, number) => {
        const mine = all.filter((runs) => runs[0].line === number && runs[0].epsilon !== null).toReversed();
        const clean = all.find((runs) => runs[0].line === number && runs[0].epsilon === null);
        const span = [Math.min(...epsilons), Math.max(...epsilons)];
        const values = mine.map((runs) => runs.map((run) => run.scores.accuracy));
        const spread = { type: "data", symmetric: false, thickness: 1, width: 3, array: values.map((some, index) => Math.max(...some) - last(mine[index])), arrayminus: values.map((some, index) => last(mine[index]) - Math.min(...some)) };
        return [
          line(mine.map((runs) => runs[0].epsilon), mine.map(last), { name, mode: "lines+markers", error_y: spread, line: { color: HUES[number], shape: "linear" }, hovertemplate: "%{y:.1%} at ε %{x}<extra>%{fullData.name}</extra>" }),
          ...(clean ? [line(span, [last(clean), last(clean)], { name: `${name}, without noise`, line: { color: HUES[number], dash: "dot", width: 1.5 }, hovertemplate: "%{y:.1%}<extra>%{fullData.name}</extra>" })] : []),
        ];
      }),
      layout: () => ({ xaxis: { type: "log", title: { text: "ε: more privacy to the left", standoff: 4 }, tickvals: epsilons, ticktext: epsilons.map(String), tickfont: { color: colour("muted") } }, yaxis: axis, ...legend }),
    }),
  ]);
}

const troubles = {};
/** Shows an error. A user's mistake stays on the page until the user's next action. */
const trouble = (where) => (error) => {
  troubles[where] = error;
  if (troubles.doing) failed(troubles.doing, "This was not done");
  else failed(troubles.looking);
};
const doing = (action) => () => action().then(() => trouble("doing")(null), trouble("doing"));
const file = () => `exploration-${shown.id}`;
for (const [value, [text]] of Object.entries(MAPS)) $("map").append(h("option", { value }, text));
$("dataset").addEventListener("change", suit);
$("map").addEventListener("change", fill);
$("more").addEventListener("click", () => another(datasets.offers[1].name));
$("upload").addEventListener("click", doing(upload));
$("delete").addEventListener("click", doing(drop));
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  doing(compare)();
});
$("cancel").addEventListener("click", doing(async () => {
  await send(`${at}/explorations/${shown.id}`, { method: "DELETE" });
  await look();
}));
$("csv").addEventListener("click", doing(() => download(`${at}/explorations/${shown.id}/table`, "text/csv", `${file()}.csv`)));
$("json").addEventListener("click", doing(() => download(`${at}/explorations/${shown.id}`, "application/json", `${file()}.json`)));
$("png").addEventListener("click", doing(async () => {
  for (const [id, name] of [["curves", "accuracy"], ["tradeoff", "by-epsilon"]]) save(await picture($(id)), `${file()}-${name}.png`);
}));
addEventListener("hashchange", () => look().catch(trouble("looking")));

frame();
regularly(2, async () => {
  if (datasets.offers.length === 0) await data();
  await look();
}, trouble("looking"));
