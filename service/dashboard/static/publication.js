import { download, follow, get, regularly, root } from "./api.js";
import { colour, draw, level, line } from "./charts.js";
import { $, amount, count, counted, fact, h, loss, meter, notice, pageOf, pill, protectedOne, range, replace, when } from "./dom.js";
import { compared, judged } from "./evaluation.js";
import { absent, failed, frame, ofAnother } from "./frame.js";
import { named } from "./names.js";
import { paged } from "./paged.js";
import { described, explained, factorOf } from "./plan.js";

const name = location.pathname.split("/").at(-1);
const at = `/v1/publications/${name}`;
const MOST_NAMES = 20; // of columns and of classes; the stream's page has all

$("name").textContent = name;
document.title = `${name} · Perennial`;
$("card").href = `${root}${at}/card?format=html`;

const COLUMNS = [
  { title: "Version" },
  { title: "Role", extra: true },
  { title: "Records seen", number: true },
  { title: "Stands for", extra: true },
  { title: "Noise scale", number: true, extra: true },
  { title: "Charge", number: true, extra: true },
  { title: "Published" },
];

const row = (release) => [
  h("a", { href: `#${release.version}` }, `version ${count(release.version)}`),
  release.role,
  count(release.time),
  range(release.window),
  amount(release.noise.scale),
  release.charge.rho === null ? `ε ${amount(release.charge.epsilon)}` : `ρ ${amount(release.charge.rho)}`,
  when(release.published_at),
];

const releases = paged(
  "releases",
  {
    path: `${at}/releases`,
    key: "version",
    columns: COLUMNS,
    row,
    caption: "Releases, newest first",
    empty: "Nothing is published yet.",
  },
  failed,
);

async function look() {
  const publication = await get(at);
  const [stream, ledger, outline] = await Promise.all([
    get(`/v1/streams/${publication.stream}`),
    get(`/v1/streams/${publication.stream}/ledger?start=0&end=0`), // its publications' shares, no ranges
    get(`${at}/releases/outline`),
    releases(),
  ]);
  const share = ledger.publications.find((publication) => publication.name === name);
  heading(publication, stream);
  tiles(publication, stream, share, outline.items);
  replace($("names"), ...named(stream, MOST_NAMES).map(([title, value]) => fact(title, value)));
  replace($("plan"), ...explained(publication).filter(Boolean));
  for (const slow of [judged(publication, stream), compared(publication), charts(publication, stream, share, outline.items)])
    slow.catch(failed); // nothing waits for charts
}

function heading({ stream, state, reason, mechanism, learner, privacy, plan, labels }, { distrusted, halted }) {
  replace($("crumb"), " / ", h("a", { href: `/dashboard/streams/${stream}` }, stream));
  replace($("state"), pill(state));
  $("live").hidden = state !== "running";
  const how = [mechanism, learner].filter(Boolean).map(({ kind }) => kind.replaceAll("_", " "));
  $("about").textContent = `${how.join(" with ")}, for ${loss(privacy)}`;
  replace(
    $("trouble"),
    ofAnother(stream),
    state === "halted" &&
      notice(
        "bad",
        "Halted: nothing more is published",
        reason ?? "",
        distrusted
          ? [
              h("code", {}, "perennial ledger verify"),
              " names all that does not hold. It goes on by itself once a worker finds all well again.",
            ]
          : "Its releases stay. Another publication, with settings that avoid this, can take its place.",
      ),
    halted &&
      notice("bad", "Its stream takes no more records", halted, [
        "Once you know why: ",
        h("code", {}, `POST /v1/streams/${stream}/resume`),
      ]),
    state === "running" && plan.labels?.from === "people" && asked(labels, stream),
    state === "stopped" &&
      notice(
        "plain",
        "Stopped",
        "Its releases stay, and what is spent stays spent. A stopped publication never goes on.",
      ),
  );
}

/** Says that the publication asks people for labels, with a link if the key may label. */
const asked = (labels, stream) =>
  labels === null
    ? notice(
        "plain",
        "It asks people for labels",
        "To give them, sign in with a key that has the scopes read and label.",
      )
    : notice("plain", "It asks people for labels", [
        labels.waiting > 0 ? `${counted(labels.waiting, "record")} to label now. ` : "Nothing is asked for now. ",
        h("a", { href: pageOf(`${name}/label`, stream) }, "Label records"),
      ]);

function tiles(publication, stream, share, outline) {
  const { latest, due, fit, privacy, state, plan, mechanism } = publication;
  const counts = mechanism.kind === "evaluation";
  const newest = outline.at(-1);
  const held = share?.reserved.rho !== undefined; // the stream's budget, in ρ
  const [unit, spent, most] =
    held && plan.guarantee.currency === "rho"
      ? ["ρ", share.spent.rho, plan.guarantee.capacity]
      : ["ε", share?.spent.epsilon ?? 0, privacy.epsilon];
  replace(
    $("tiles"),
    fact(
      counts ? "Latest figures" : "Latest model",
      latest === null ? "none yet" : `version ${count(latest)}`,
      h("small", {}, newest ? when(newest.published_at) : ""),
    ),
    fact("Records", count(stream.records), h("small", {}, newest ? counts ? `figures up to ${count(newest.time)}` : `${count(newest.time)} seen by a model` : "")),
    fact(
      plan.first_releases?.length ? "Next release" : "Goes on",
      due === null
        ? "none"
        : due > stream.records
          ? `in ${counted(due - stream.records, "record")}`
          : `${count(stream.records - due)} behind`,
      fit === null
        ? h("small", {}, due === null ? state : `at record ${count(due)}`)
        : h("small", {}, "due since ", when(fit.since)),
      fit?.reason ? h("small", {}, fit.reason) : null,
    ),
    fact(
      "Privacy used",
      `${unit} ${amount(spent)} of ${amount(most)}`,
      h("small", {}, meter(spent, 0, most, `${amount(spent)} of ${amount(most)}`)),
      held && unit === "ε" && h("small", {}, `ρ ${amount(share.spent.rho)}, as its stream counts it`),
      h("small", {}, `the most any ${protectedOne(stream.unit)} has used`),
    ),
  );
  $("tiles").removeAttribute("aria-busy");
}

async function charts({ plan, start }, { records, unit: terms }, share, outline) {
  const [unit, cap] = [plan.guarantee.currency === "rho" ? "ρ" : "ε", plan.guarantee.capacity];
  $("charts").hidden = outline.length === 0;
  if (outline.length === 0) return;
  const time = outline.map((point) => point.time);
  const text = outline.map((point) =>
    point.first === point.last ? `version ${count(point.last)}` : `versions ${count(point.first)} – ${count(point.last)}`,
  );
  const [least, most] = ["least_noise", "most_noise"].map((which) => outline.map((point) => point[which]));
  const mode = outline.length > 100 ? "lines" : "lines+markers";
  let sum = 0;
  const factor = factorOf(plan.guarantee.unit);
  const paid = outline.map((point) => (sum += factor * point.on_record));
  // Where records are charged as they arrive, releases alone don't show what the record that has used most has used.
  $("paid").parentElement.hidden = sum < 0.999 * share.spent[plan.guarantee.currency];
  $("noise").parentElement.hidden = most.every((value) => value === null);
  const flat = { noise: Math.min(...least) === Math.max(...most), paid: new Set(paid).size === 1, seen: false };
  $("charts").append(...["noise", "paid", "seen"].filter((chart) => flat[chart]).map((chart) => $(chart).parentElement));
  const x = { title: { text: "records seen", standoff: 4 } };
  const band = { mode: "lines", line: { width: 0, shape: "linear" }, hoverinfo: "skip" };
  $("noise-said").textContent = `scale, now ${amount(most.at(-1))}`;
  $("paid-said").textContent = `${unit} ${amount(sum)} of ${amount(cap)}, the most any ${protectedOne(terms)} has used`;
  $("seen-said").textContent = `${count(time.at(-1))} of ${count(records)}`;
  await Promise.all([
    draw($("noise"), {
      said: `Scale of the noise by records seen. It lies between ${amount(Math.min(...least))} and ${amount(Math.max(...most))}; the latest is ${amount(most.at(-1))}.`,
      traces: () => [
        line(time, least, band),
        line(time, most, { ...band, fill: "tonexty", fillcolor: colour("accent-soft") }),
        line(time, most, {
          text,
          mode,
          line: { shape: "linear", width: 1.5 },
          hovertemplate: "scale %{y:.3g}<br>%{text}<extra></extra>",
        }),
      ],
      layout: () => ({ xaxis: x }),
    }),
    draw($("paid"), {
      said: `Privacy used, release by release, by the ${protectedOne(terms)} that has used most: ${unit} ${amount(sum)} of at most ${amount(cap)}.`,
      traces: () => [
        line([start, ...time, records], [0, ...paid, sum], {
          text: ["begin", ...text, "now"],
          mode,
          fill: "tozeroy",
          fillcolor: colour("accent-soft"),
          hovertemplate: `${unit} %{y:.3g}<br>%{text}<extra></extra>`,
        }),
      ],
      layout: () => ({
        xaxis: x,
        yaxis: { range: [0, 1.15 * cap] },
        ...level(cap, `the most any ${protectedOne(terms)} may use: ${unit} ${amount(cap)}`),
      }),
    }),
    draw($("seen"), {
      said: `Records seen by the newest release, over time: ${count(time.at(-1))} of ${count(records)}.`,
      traces: () => [
        line([...outline.map((point) => new Date(point.published_at)), new Date()], [...time, time.at(-1)], {
          text: [...text, "now"],
          mode,
          hovertemplate: "%{y:,} records<br>%{text}<extra></extra>",
        }),
      ],
      layout: () => ({
        xaxis: { title: { text: "published", standoff: 4 }, nticks: 4, tickangle: 0 },
        yaxis: { range: [0, 1.15 * Math.max(records, 1)] },
        ...level(records, `numbered: ${count(records)}`),
      }),
    }),
  ]);
}

async function detail() {
  const version = Number(location.hash.slice(1));
  if (!Number.isInteger(version) || version < 1) {
    $("release").close();
    return;
  }
  const release = await get(`${at}/releases/${version}`);
  const values = release.parameters.values.flat();
  const [address, file] = [`${at}/releases/${version}`, `${name}-${version}`];
  const save = (type, ending) => () => download(address, type, `${file}.${ending}`).catch(failed);
  $("release").replaceChildren(
    h(
      "div",
      {},
      h(
        "header",
        {},
        h("h2", { id: "release-title" }, `${name}, version ${count(version)}`),
        h("button", { type: "button", class: "quiet", onclick: () => $("release").close() }, "Close"),
      ),
      h(
        "dl",
        { class: "facts" },
        described(release).map(([title, value]) => fact(title, value)),
      ),
      h(
        "details",
        {},
        h("summary", {}, counted(values.length, "weight")),
        h(
          "pre",
          { tabindex: "0" },
          h(
            "code",
            {},
            values
              .slice(0, 200)
              .map((value) => value.toPrecision(6))
              .join("\n"),
            values.length > 200 ? "\n…" : "",
          ),
        ),
      ),
      h(
        "div",
        { class: "row" },
        h(
          "button",
          { type: "button", class: "primary", onclick: save("application/vnd.safetensors", "safetensors") },
          "Download safetensors",
        ),
        h("button", { type: "button", onclick: save("application/json", "json") }, "Download JSON"),
      ),
      h("p", { class: "muted" }, "It never changes, and it may be given to anybody: using it costs no more privacy."),
    ),
  );
  if (!$("release").open) $("release").showModal();
}

$("release").addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
$("release").addEventListener("click", (event) => event.target === $("release") && $("release").close());
addEventListener("hashchange", () => detail().catch(failed));

frame();
const again = regularly(15, look, absent);
follow(name, again, (live) => {
  $("live").classList.toggle("on", live);
  $("live").textContent = live ? "live" : "connecting again";
});
if (location.hash) detail().catch(failed);
