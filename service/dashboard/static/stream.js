import { get, regularly } from "./api.js";
import { colour, draw, level, line } from "./charts.js";
import { post } from "./command.js";
import {
  $,
  amount,
  budgetFacts,
  budgetMeter,
  count,
  counted,
  fact,
  h,
  held,
  loss,
  notice,
  pill,
  protectedOne,
  range,
  replace,
  table,
  toPublication,
  when,
} from "./dom.js";
import { absent, failed, frame } from "./frame.js";
import { named, readsText } from "./names.js";
import { paged } from "./paged.js";

const name = location.pathname.split("/").at(-1);
const at = `/v1/streams/${name}`;
const MOST_SHOWN = 1024; // features of a record that a page writes out
let part = null; // the records that are looked at; null: all

$("name").textContent = name;
document.title = `${name} · Perennial`;

const charges = paged(
  "charges",
  {
    path: `${at}/ledger/charges`,
    key: "id",
    caption: "Charges, newest first",
    empty: "Nothing is charged yet.",
    columns: [
      { title: "Charge", number: true },
      { title: "Publication" },
      { title: "Version", number: true },
      { title: "Records", number: true },
      { title: "To each", number: true },
      { title: "When" },
      { title: "Hash", extra: true },
    ],
    row: (charge) => [
      count(charge.id),
      toPublication(charge.publication, name),
      charge.version === null ? "at arrival" : count(charge.version),
      range(charge),
      charge.rho === null ? loss(charge) : `ρ ${amount(charge.rho)}`,
      when(charge.charged_at),
      h("code", {}, charge.hash.slice(0, 12)),
    ],
  },
  failed,
);

async function look() {
  const stream = await get(at);
  const asked = part ? `?start=${part.start}&end=${part.end}` : "";
  const [ledger] = await Promise.all([get(`${at}/ledger${asked}`), charges()]);
  heading(stream);
  replace(
    $("facts"),
    h("dl", { class: "facts" }, fact("Records", count(stream.records)), budgetFacts(stream)),
    budgetMeter(stream),
    ledger.tighter.how !== "sum" &&
      stream.budget.rho === undefined &&
      h(
        "p",
        { class: "muted" },
        `What is reserved adds up as the sum of ε. If no publication was chosen by looking at releases, a smaller bound holds: ${loss(ledger.tighter)}.`,
      ),
    h(
      "details",
      {},
      h("summary", {}, "Schema and settings"),
      h(
        "dl",
        { class: "facts" },
        settings(stream).map(([title, value]) => fact(title, value)),
      ),
    ),
  );
  replace(
    $("shares"),
    ledger.publications.length ? shares(ledger, protectedOne(stream.unit)) : howToPublish(stream),
    stream.records === 0 && howToPost(stream),
  );
  chart(stream, ledger).catch(failed);
}

function heading({ halted, distrusted, declassified, dead_letters: dead, task, created_at: made }) {
  replace($("state"), pill(distrusted ? "distrusted" : halted ? "halted" : "receiving"));
  replace($("about"), task.kind, ", made ", when(made));
  replace(
    $("trouble"),
    distrusted &&
      notice("bad", "Its ledger does not verify, so nothing is published", distrusted, [
        h("code", {}, "perennial ledger verify"),
        " names all that does not hold. Restore what was changed; publishing goes on by itself once a worker finds all well again.",
      ]),
    halted &&
      notice("bad", "Nothing more is numbered", halted, [
        "Find out what happened to the log. Then ",
        h("code", {}, `POST /v1/streams/${name}/resume`),
        " makes it go on, and tells what is lost.",
      ]),
    declassified > 0 &&
      notice(
        "warn",
        `${counted(declassified, "record")} no longer protected`,
        "A publication has shown them in the clear since they expired. Nothing bounds their loss, and no figure here counts it. They are hatched below.",
      ),
    dead > 0 &&
      notice("warn", `${counted(dead, "entry", "entries")} of the log could not be read`, [
        h("code", {}, `GET /v1/streams/${name}/dead-letters`),
        " lists them.",
      ]),
  );
}

const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
const ordinal = (number) => `${count(number)}${{ one: "st", two: "nd", few: "rd" }[ORDINALS.select(number)] ?? "th"}`;

const settings = (stream) => {
  const { features, feature_map: map, norm_bound: bound, task, retention, erased, kept, resumptions } = stream;
  const { unit, evaluation } = stream;
  return [
    ["Features", features ?? "none"],
    ...named(stream),
    ["Task", JSON.stringify(task)],
    [
      "Protects",
      unit
        ? `all records of a unit: ${count(unit.max_records)} count, each at least ${count(unit.min_separation)} after the one before`
        : "each record by itself",
    ],
    [
      "For evaluations",
      evaluation ? `every ${ordinal(evaluation.every)} ${protectedOne(unit)} is set aside` : `no ${protectedOne(unit)} is set aside`,
    ],
    ["Norm bound", amount(bound)],
    ["Feature map", map ? map.kind : "none"],
    ["Keeps", retention === "keep" ? "every record" : `what is needed, from record ${count(kept.start)}`],
    ["Erased", counted(erased.records, "record")],
    ["Resumed", counted(resumptions.length, "time")],
  ];
};

const shares = ({ publications }, one) =>
  table(
    "Reserved and used, by publication",
    [
      { title: "Publication" },
      { title: "State" },
      { title: "From record", number: true },
      { title: "Reserves", number: true },
      { title: `Used, the most by any ${one}`, number: true },
      { title: "Record with the most", number: true, extra: true },
    ],
    publications.map((publication) => [
      toPublication(publication.name, name),
      publication.running ? "runs" : "ended",
      count(publication.start),
      held(publication.reserved),
      publication.reserved.rho === undefined ? loss(publication.spent) : held(publication.spent),
      publication.spent.record === null ? "–" : count(publication.spent.record),
    ]),
  );

/** The settings that docs/choosing.md recommends for a stream of which nothing else is known. */
const suggested = ({ delta }) =>
  delta > 0
    ? `"mechanism": {"kind": "online_leader", "batch": 500},
       "learner": {"kind": "noisy_gradient_descent"}`
    : `"mechanism": {"kind": "independent_batches", "batch": 1000, "warm_start": true},
       "learner": {"kind": "output_perturbation"}`;

const half = ({ epsilon, delta, rho }) =>
  rho === undefined ? `{"epsilon": ${epsilon / 2}, "delta": ${delta / 2}}` : `{"rho": ${rho / 2}}`;

const howToPublish = ({ budget, task }) =>
  h(
    "div",
    { id: "publish", class: "stack" },
    h(
      "p",
      {},
      "None yet. A plan (",
      h("code", {}, "POST /v1/plan"),
      ", the same body) tells what one would cost; this starts one, with an administrator's key:",
    ),
    h(
      "pre",
      { tabindex: "0" },
      h(
        "code",
        {},
        post(
          "/v1/publications",
          `{"name": "${name}-model", "stream": "${name}",
       ${suggested(budget)},
       "privacy": ${half(budget)}}`,
        ),
      ),
    ),
    task.kind === "classification" || task.kind === "regression"
      ? null
      : h("p", { class: "muted" }, "A stream of this kind has mechanisms of its own: see the documentation."),
  );

/** Returns the x of a record with equal numbers or texts, by name where columns have names. */
const example = ({ features, columns }, value) =>
  columns
    ? Object.fromEntries(columns.map(({ name: column }) => [column, value]))
    : Array(features).fill(value);

/** Two records of a stream, as JSON. */
function two(stream) {
  const { features, class_names: classes, task, unit } = stream;
  const values = readsText(stream) ? ["a text", "another one"] : [0, 1];
  const second = Math.min(1, (task.cardinality ?? 2) - 1); // there may be one category alone
  return JSON.stringify({
    ...(features ? { x: values.map((value) => example(stream, value)) } : {}),
    ...(task.kind === "unlabelled" ? {} : { y: [0, second].map((label) => classes?.[label] ?? label) }),
    ...(unit ? { unit: ["a person", "another one"] } : {}),
  });
}

const howToPost = (stream) =>
  stream.features > MOST_SHOWN
    ? h("p", {}, `No records yet. A record has ${count(stream.features)} features, too many to write out here: see the documentation.`)
    : [
        h(
          "p",
          {},
          "No records yet. These two would be its first, with a key that has the scope ",
          h("code", {}, "ingest"),
          ":",
        ),
        h("pre", { tabindex: "0" }, h("code", {}, post(`${at}/records`, two(stream)))),
      ];

async function chart({ records, budget, declassified, unit }, { ranges, exact, reserved }) {
  $("spending").hidden = records === 0;
  if (records === 0) return;
  const { start, end } = part ?? { start: 0, end: records };
  $("from").placeholder = 0;
  $("to").placeholder = records - 1;
  $("all").disabled = part === null;
  const most = ranges.reduce((largest, range) => Math.max(largest, range.epsilon ?? 0), 0);
  $("ledger-said").textContent = [
    counted(ranges.length, "range"),
    `the most ε ${amount(most)}${declassified > 0 ? " of those still protected" : ""}`,
    exact ? null : "neighbours drawn as one: show fewer records to see all",
  ]
    .filter(Boolean)
    .join(" · ");
  const x = ranges.flatMap((range) => [range.start, range.end]);
  const [spent, hatched] = [false, true].map((which) =>
    ranges.flatMap((range) => {
      const height = which ? (range.declassified ? budget.epsilon : null) : range.epsilon;
      return [height, height];
    }),
  );
  await draw($("ledger"), {
    said: `What each record from ${count(start)} to ${count(end - 1)} has spent, in ${counted(ranges.length, "range")}. The most is ε ${amount(most)} of ${amount(budget.epsilon)}.`,
    traces: () => [
      line(x, spent, {
        line: { shape: "linear", width: 1.5 },
        fill: "tozeroy",
        fillcolor: colour("accent-soft"),
        connectgaps: false,
        hovertemplate: `${exact ? "" : "at most "}ε %{y:.3g}<extra></extra>`,
      }),
      line(x, hatched, {
        line: { shape: "linear", width: 0 },
        fill: "tozeroy",
        connectgaps: false,
        fillpattern: { shape: "/", size: 10, solidity: 0.1, fgcolor: colour("hatch"), bgcolor: colour("warn-soft") },
        hovertemplate: "no longer protected<extra></extra>",
      }),
    ],
    layout: () => ({
      dragmode: "zoom",
      xaxis: { title: { text: "record number", standoff: 4 }, fixedrange: false, range: [start, Math.max(end, 1)] },
      yaxis: { title: { text: "ε", standoff: 4 }, range: [0, 1.1 * budget.epsilon] },
      shapes: [...level(budget.epsilon).shapes, ...level(reserved.epsilon).shapes],
      annotations: [
        ...level(budget.epsilon, `budget: ε ${amount(budget.epsilon)}`).annotations,
        ...(budget.epsilon - reserved.epsilon > budget.epsilon / 12
          ? level(reserved.epsilon, `reserved for any one ${protectedOne(unit)}: ε ${amount(reserved.epsilon)}`).annotations
          : []),
      ],
    }),
  });
  if (!$("ledger").listening) {
    $("ledger").listening = true;
    $("ledger").on("plotly_relayout", (change) => {
      const [low, high] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (low !== undefined && high - low > 0) show({ start: Math.max(0, Math.floor(low)), end: Math.ceil(high) });
    });
  }
}

function show(records) {
  part = records;
  if (records) [$("from").value, $("to").value] = [records.start, records.end - 1];
  else $("zoom").reset();
  again();
}

$("zoom").addEventListener("submit", (event) => {
  event.preventDefault();
  const [start, last] = [$("from").valueAsNumber, $("to").valueAsNumber];
  $("to").setCustomValidity(start <= last ? "" : "The last record must not come before the first.");
  if ($("zoom").reportValidity()) show({ start, end: last + 1 });
});
$("zoom").addEventListener("input", () => $("to").setCustomValidity(""));
$("all").addEventListener("click", () => show(null));

frame();
const again = regularly(10, look, absent);
