const $ = id => document.getElementById(id);

// Options of a request: name, label, default, kind; `only`: in this mode.
const OPTIONS = [
  {name: 'system', label: 'System message', value: '', kind: 'lines', only: 'chat'},
  {name: 'max_tokens', label: 'Maximum tokens', value: 128, kind: 'integer', min: 1},
  {name: 'temperature', label: 'Temperature', value: 1, kind: 'number', min: 0, max: 100, step: 0.1, hint: '0 takes the most probable token'},
  {name: 'top_p', label: 'Top-p', value: 1, kind: 'number', min: 0.01, max: 1, step: 0.01, hint: '1: all tokens'},
  {name: 'top_k', label: 'Top-k', value: 0, kind: 'integer', min: 0, hint: '0: all tokens'},
  {name: 'seed', label: 'Seed', value: '', kind: 'integer', min: 0, hint: 'random'},
  {name: 'n', label: 'Answers', value: 1, kind: 'integer', min: 1, max: 64, only: 'completion'},
  {name: 'stop', label: 'Stop at (one text per line)', value: '', kind: 'lines'},
  {name: 'ignore_eos', label: 'Ignore end of text', value: false, kind: 'flag'},
  {name: 'probabilities', label: 'Show probabilities', value: true, kind: 'flag'},
  {name: 'alternatives', label: 'Alternatives', value: 5, kind: 'integer', min: 0, max: 20},
  {name: 'key', label: 'API key', value: '', kind: 'secret'},
];
const DEFAULTS = Object.fromEntries(OPTIONS.map(o => [o.name, o.value]));
const PLACE = 'teratron';
const SURPRISED = Math.log(1000);  // a token of probability 1/1000 or less has the full colour

// What the browser keeps; without storage (a private window) it lasts as long as the page.
const store = {
  read(key, otherwise) {
    try { return JSON.parse(localStorage.getItem(`${PLACE}.${key}`)) ?? otherwise; } catch { return otherwise; }
  },
  write(key, value) { try { localStorage.setItem(`${PLACE}.${key}`, JSON.stringify(value)); } catch {} },
};

let options = {...DEFAULTS, ...store.read('options', {})};
let mode = store.read('mode', 'chat');
let past = store.read('history', []);  // {id, mode, title, turns}, the newest first
let talk = {id: Date.now(), mode, turns: []};
let running = null;  // AbortController
let model = {};

const headers = () => ({'Content-Type': 'application/json', ...(options.key ? {Authorization: `Bearer ${options.key}`} : {})});

// ------------------------------------------------------------ options

function drawOptions() {
  const field = o => o.kind === 'lines'
    ? html`<label class="option wide">${o.label}<textarea rows="2" data-name="${o.name}"></textarea></label>`
    : o.kind === 'flag' ? html`<label class="option">${o.label}<input type="checkbox" data-name="${o.name}"></label>`
    : html`<label class="option">${o.label}<input data-name="${o.name}" type="${o.kind === 'secret' ? 'password' : 'number'}"
        min="${o.min}" max="${o.max}" step="${o.step ?? 1}" placeholder="${o.hint}" title="${o.hint}" autocomplete="off"></label>`;
  $('legend').hidden = !options.probabilities;
  $('options').innerHTML = html`${OPTIONS.filter(o => !o.only || o.only === mode).map(field)}`.text;
  for (const input of $('options').querySelectorAll('[data-name]')) {
    const option = OPTIONS.find(o => o.name === input.dataset.name);
    if (option.kind === 'flag') input.checked = options[option.name]; else input.value = options[option.name];
    input.onchange = () => {
      options[option.name] = option.kind === 'flag' ? input.checked
        : input.type === 'number' && input.value !== '' ? Number(input.value) : input.value;
      store.write('options', {...options, key: ''});
      $('legend').hidden = !options.probabilities;
      if (option.name === 'key') connect();
    };
  }
}

function setMode(next) {
  if (running) return;
  mode = next;
  store.write('mode', mode);
  for (const name of ['chat', 'completion']) {
    $(`tab-${name}`).setAttribute('aria-selected', name === mode);
    $(`tab-${name}`).tabIndex = name === mode ? 0 : -1;
  }
  $('input').placeholder = mode === 'chat' ? 'A message. Enter sends it, Shift+Enter begins a line.'
    : 'The beginning of a text. Ctrl+Enter continues it.';
  $('send').textContent = mode === 'chat' ? 'Send' : 'Continue';
  $('talk').dataset.empty = mode === 'chat' ? 'Ask something: the model answers, and remembers what was said before.'
    : 'Begin a text: the model continues it.';
  drawOptions();
  if (talk.mode !== mode) begin();
}

function begin() {
  talk = {id: Date.now(), mode, turns: []};
  drawTalk();
  $('status').textContent = '';
  $('speed').innerHTML = '';
  $('input').focus();
}

// ------------------------------------------------------------ the conversation

const percent = logprob => logprob < Math.log(0.0005) ? '< 0.1 %' : `${(100 * Math.exp(logprob)).toFixed(1)} %`;

// A turn: {role, text, prompt, tokens: [{label, logprob, top: [[label, logprob]], shown}], facts}. `shown` is the text
// that came with the token: nothing for one with a part of a character, or that may begin a stop text.
function turnHtml(turn) {
  const spans = [];
  let first = 0, logprob = 0, shown = 0;
  (turn.tokens ?? []).forEach((token, i) => {
    logprob += token.logprob;
    if (!token.shown) return;
    spans.push(html`<span class="token" tabindex="-1" data-first="${first}" data-last="${i}"
      style="--surprise:${Math.min(1, -logprob / SURPRISED).toFixed(3)}">${token.shown}</span>`);
    [first, logprob, shown] = [i + 1, 0, shown + token.shown.length];
  });
  const act = (name, label) => html` <button class="link" data-act="${name}">${label}</button>`;
  const acts = [navigator.clipboard ? act('copy', 'Copy') : '', turn.prompt ? act('extend', 'Continue from here') : ''];
  return html`${turn.prompt ? html`<span class="prompt">${turn.prompt}</span>` : ''}${spans}${turn.text.slice(shown)}${
    turn.facts ? html`<span class="facts">${turn.facts}${acts}</span>` : ''}`;
}

function addTurn(turn) {
  const box = document.createElement('div');
  box.className = `turn ${turn.role}`;
  box.turn = turn;
  box.innerHTML = turnHtml(turn).text;
  $('talk').append(box);
  return box;
}

function drawTalk() {
  $('talk').innerHTML = '';
  for (const turn of talk.turns) addTurn(turn);
  $('talk').scrollTop = $('talk').scrollHeight;
}

// What a token is called: blanks and what is not a character are made visible.
function labelOf(bytes) {
  try { return JSON.stringify(new TextDecoder('utf-8', {fatal: true}).decode(new Uint8Array(bytes))).slice(1, -1).replaceAll(' ', '\u00b7'); }
  catch { return bytes.map(b => `\\x${b.toString(16).padStart(2, '0')}`).join(''); }
}
const bytesOf = text => text.startsWith('bytes:')
  ? text.slice(6).split('\\x').filter(Boolean).map(h => parseInt(h, 16)) : [...new TextEncoder().encode(text)];

// The tokens of a chunk of either endpoint.
function chunkTokens(logprobs) {
  const token = (bytes, logprob, top) => ({label: labelOf(bytes), logprob, top: top.sort((a, b) => b[1] - a[1])});
  if (logprobs?.content)
    return logprobs.content.map(t => token(t.bytes, t.logprob, t.top_logprobs.map(a => [labelOf(a.bytes), a.logprob])));
  return (logprobs?.tokens ?? []).map((text, i) => token(bytesOf(text), logprobs.token_logprobs[i],
    Object.entries(logprobs.top_logprobs[i] ?? {}).map(([other, logprob]) => [labelOf(bytesOf(other)), logprob])));
}

const textOf = choice => (choice.delta ? choice.delta.content : choice.text) ?? '';

function addChunk(turn, choice) {
  const text = textOf(choice), tokens = chunkTokens(choice.logprobs);
  turn.text += text;
  turn.tokens.push(...tokens.map((token, i) => ({...token, shown: i + 1 === tokens.length ? text : ''})));
}

// ------------------------------------------------------------ requests

function requestBody(prompt) {
  const body = {stream: true, stream_options: {include_usage: true}, max_tokens: options.max_tokens,
    temperature: options.temperature, top_p: options.top_p, top_k: options.top_k, ignore_eos: options.ignore_eos};
  if (options.seed !== '') body.seed = options.seed;
  const stops = options.stop.split('\n').filter(Boolean);
  if (stops.length) body.stop = stops;
  if (mode === 'completion') {
    return {...body, prompt, n: options.n, ...(options.probabilities ? {logprobs: options.alternatives} : {})};
  }
  const system = options.system ? [{role: 'system', content: options.system}] : [];
  const messages = talk.turns.filter(t => t.role !== 'error').map(t => ({role: t.role, content: t.text}));
  return {...body, messages: [...system, ...messages],
    ...(options.probabilities ? {logprobs: true, top_logprobs: options.alternatives} : {})};
}

const HINTS = {401: 'Enter the key under Options.', 404: 'Reload the page.', 413: 'Shorten the text.',
  429: 'Too many requests at once: try again in a moment.', 503: 'The server is stopping.'};
async function errorText(response) {
  const text = await response.text();
  let message = text;
  try { message = JSON.parse(text).error.message; } catch {}
  return `${message} ${HINTS[response.status] ?? ''}`.trim();
}

// Calls `use` with each event of a stream and the time at which it came.
async function readEvents(response, use) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = '';;) {
    const {value, done} = await reader.read();
    if (done) return;
    const events = (text + value).split('\n\n');
    text = events.pop();
    const now = performance.now();
    for (const event of events) {
      if (event.startsWith('data: ') && event !== 'data: [DONE]') use(JSON.parse(event.slice(6)), now);
    }
  }
}

function factsOf(turn, tokens, pace, start) {
  const speed = pace.speed(tokens), why = {stop: '', length: '; cut at the maximum', stopped: '; stopped'}[turn.why] ?? '';
  return `${tokens} tokens${speed === null ? '' : `, ${speed.toFixed(1)} tokens/s`}, first after ${
    (((pace.first ?? performance.now()) - start) / 1000).toFixed(2)} s${why}`;
}

async function answer(prompt) {
  const start = performance.now(), turns = [], paces = [], whole = new Pace();
  let counted = null, stale = false;
  const turnOf = index => turns[index] ??= Object.assign(addTurn({role: 'assistant', text: '', prompt: mode === 'completion' ? prompt : '', tokens: []}));
  const redraw = () => {
    const talk = $('talk'), follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
    stale = false;
    turns.forEach(box => { box.innerHTML = turnHtml(box.turn).text; });
    if (follows) talk.scrollTop = talk.scrollHeight;
    if (whole.tokens) $('status').textContent = factsOf({}, whole.tokens, whole, start);
  };
  const use = (event, now) => {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) {
      const {turn} = turnOf(choice.index), before = turn.tokens.length;
      addChunk(turn, choice);
      const added = Math.max(turn.tokens.length - before, textOf(choice) ? 1 : 0);
      for (const pace of [whole, paces[choice.index] ??= new Pace()]) pace.add(added, now);
      if (choice.finish_reason) turn.why = choice.finish_reason;
    }
    if (event.usage && turns.length === 1) counted = event.usage.completion_tokens;
    if (!stale) { stale = true; requestAnimationFrame(redraw); }
  };
  running = new AbortController();
  try {
    const response = await fetch(mode === 'chat' ? 'v1/chat/completions' : 'v1/completions',
      {method: 'POST', headers: headers(), body: JSON.stringify(requestBody(prompt)), signal: running.signal});
    if (!response.ok) throw new Error(await errorText(response));
    await readEvents(response, use);
  } catch (error) {
    if (error.name === 'AbortError') turns.forEach(box => { box.turn.why = 'stopped'; });
    else fail(error instanceof TypeError ? 'The server does not answer. Is it still running?' : error.message);
  }
  running = null;
  turns.forEach((box, i) => {
    box.turn.facts = factsOf(box.turn, counted ?? paces[i].tokens, paces[i], start);
    talk.turns.push(box.turn);
  });
  redraw();
  drawSpeed(whole);
}

function fail(message) {
  addTurn({role: 'error', text: message});
  $('talk').scrollTop = $('talk').scrollHeight;
}

// Tokens per second over the time of the answer.
function drawSpeed(pace) {
  const points = pace.curve();
  $('speed').innerHTML = '';
  if (points.length < 2) return;
  $('speed').innerHTML = html`<details><summary>Speed of the last answer</summary>${
    chart({title: 'tokens per second', wide: false, xLabel: 'seconds', series: [{color: 'speed', points}]})}</details>`.text;
  const svg = $('speed').querySelector('svg');
  if (svg) addCursor(svg, drawn.at(-1));
}

async function send() {
  const text = $('input').value;
  if (running || (mode === 'chat' && !text.trim())) return;
  setRunning(true);
  $('status').textContent = 'waiting for the first token';
  if (mode === 'chat') {
    const turn = {role: 'user', text};
    talk.turns.push(turn);
    addTurn(turn);
    $('input').value = '';
  }
  $('talk').scrollTop = $('talk').scrollHeight;
  await answer(text);
  if (talk.turns.at(-1)?.role === 'user') {  // no answer came: the message can be sent again
    $('input').value = talk.turns.pop().text;
  }
  if ($('status').textContent.startsWith('waiting')) $('status').textContent = '';
  setRunning(false);
  remember();
}

function setRunning(on) {
  $('send').disabled = on;
  $('stop').disabled = !on;
  $('talk').setAttribute('aria-busy', on);
  for (const id of ['tab-chat', 'tab-completion', 'new']) $(id).disabled = on || (id === 'tab-chat' && !model.chat_template);
  if (!on) $('input').focus();
}

// ------------------------------------------------------------ history

function remember() {
  if (!talk.turns.length) return;
  const title = (talk.turns[0].prompt || talk.turns[0].text).trim().slice(0, 60) || '(empty)';
  // Without the alternatives, which would soon fill what a browser gives a page.
  const turns = talk.turns.map(({role, text, prompt, facts}) => ({role, text, prompt, facts}));
  past = [{id: talk.id, mode: talk.mode, title, turns}, ...past.filter(p => p.id !== talk.id)].slice(0, 50);
  store.write('history', past);
  drawHistory();
}

function drawHistory() {
  $('history').innerHTML = html`${past.map(p => html`<div class="past"><button data-open="${p.id}" title="${p.title}">${p.title}</button>
    <button data-drop="${p.id}" aria-label="Delete ${p.title}">×</button></div>`)}`.text || 'Nothing yet.';
  $('forget').hidden = !past.length;
}

$('history').onclick = event => {
  const {open, drop} = event.target.dataset;
  if (running) return;
  if (open) {
    const found = past.find(p => p.id === Number(open));
    talk = {id: found.id, mode: found.mode, turns: [...found.turns]};
    setMode(found.mode);
    drawTalk();
  }
  if (drop) {
    past = past.filter(p => p.id !== Number(drop));
    store.write('history', past);
    drawHistory();
  }
};

// ------------------------------------------------------------ events

function showAlternatives(span) {
  const box = $('alternatives');
  const tokens = span?.closest('.turn').turn.tokens.slice(Number(span.dataset.first), Number(span.dataset.last) + 1) ?? [];
  box.hidden = !tokens.length;
  if (box.hidden) return;
  const rows = ({label, logprob, top}) => top.some(([other]) => other === label) ? top : [...top, [label, logprob]];
  box.innerHTML = html`<table>${tokens.map(token => html`<tbody>${rows(token).map(([label, logprob]) => html`
    <tr class="${label === token.label ? 'chosen' : ''}"><td>${label}</td><td>${percent(logprob)}</td>
    <td><i class="share" style="--p:${Math.exp(logprob).toFixed(3)}"></i></td></tr>`)}</tbody>`)}</table>`.text;
  const at = span.getClientRects()[0], size = box.getBoundingClientRect();
  box.style.left = `${Math.max(6, Math.min(at.left, innerWidth - size.width - 6))}px`;
  box.style.top = `${at.bottom + size.height + 10 > innerHeight ? at.top - size.height - 6 : at.bottom + 6}px`;
}
$('talk').onpointerover = event => showAlternatives(event.target.closest('.token'));
$('talk').addEventListener('focusin', event => showAlternatives(event.target.closest('.token')));
$('talk').onpointerleave = () => showAlternatives(null);
$('talk').onscroll = () => showAlternatives($('talk').querySelector('.token:focus, .token:hover'));
// The arrows walk from token to token.
$('talk').onkeydown = event => {
  const tokens = [...$('talk').querySelectorAll('.token')], at = tokens.indexOf(document.activeElement);
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (step && tokens.length) { tokens[at < 0 ? 0 : at + step]?.focus(); event.preventDefault(); }
};
$('talk').onclick = event => {
  event.target.closest('.token')?.focus();
  const act = event.target.dataset.act, turn = event.target.closest('.turn')?.turn;
  if (act === 'copy') navigator.clipboard.writeText((turn.prompt ?? '') + turn.text).then(() => { event.target.textContent = 'Copied'; });
  if (act === 'extend') {
    $('input').value = turn.prompt + turn.text;
    $('input').focus();
  }
};

$('form').onsubmit = event => { event.preventDefault(); send(); };
$('stop').onclick = () => running?.abort();
$('new').onclick = begin;
$('forget').onclick = () => { past = []; store.write('history', past); drawHistory(); };
$('defaults').onclick = () => { options = {...DEFAULTS, key: options.key}; store.write('options', {...options, key: ''}); drawOptions(); };
$('input').onkeydown = event => {
  const enter = event.key === 'Enter' && !event.isComposing;
  if (enter && (mode === 'chat' ? !event.shiftKey : event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
};
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') { running?.abort(); showAlternatives(null); }
});
for (const name of ['chat', 'completion']) {
  $(`tab-${name}`).onclick = () => setMode(name);
  $(`tab-${name}`).onkeydown = event => {
    if (!['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
    const other = $(name === 'chat' ? 'tab-completion' : 'tab-chat');
    if (!other.disabled) { other.click(); other.focus(); }
  };
}

async function connect() {
  try {
    const response = await fetch('v1/models', {headers: headers()});
    if (!response.ok) return fail(await errorText(response));
    [model] = (await response.json()).data;
  } catch { return fail('The server does not answer. Is it still running?'); }
  const fitting = Math.min(DEFAULTS.max_tokens, Math.floor(model.max_model_len / 2));
  if (options.max_tokens === DEFAULTS.max_tokens) options.max_tokens = fitting;
  DEFAULTS.max_tokens = fitting;
  $('talk').querySelectorAll('.error').forEach(box => box.remove());
  $('name').textContent = document.title = model.id;
  $('context').textContent = `${model.max_model_len.toLocaleString()} tokens of context`;
  $('tab-chat').disabled = !model.chat_template;
  $('tab-chat').title = model.chat_template ? `chat template ${model.chat_template}` : 'The model has no chat template (--chat-template)';
  setMode(model.chat_template ? mode : 'completion');
}

if (matchMedia('(max-width: 760px)').matches) $('side').open = false;
setMode(mode);
drawHistory();
connect();
