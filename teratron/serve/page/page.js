let past = store.read('history', []);  // {id, mode, title, turns}, the newest first
let talk = {id: Date.now(), mode, turns: []};
let running = null;  // AbortController
let edited = -1;     // the turn that the next message replaces, with all behind it

const EXAMPLES = {
  chat: ['Explain in three sentences why the sky is blue.', 'Write a Python function that tells whether a word is a palindrome.',
    'List five ideas for a rainy Sunday, as a table with their cost.', 'What is the difference between a virus and a bacterium?'],
  completion: ['Once upon a time', 'The three most important inventions are', 'def fibonacci(n):', 'Dear Sir or Madam,'],
};

// ------------------------------------------------------------ modes

const isPhone = () => matchMedia('(max-width: 760px)').matches;
const model = () => models.find(m => m.id === options.model) ?? models[0] ?? {};

function optionChanged(name) {
  if (name === 'key') connect();
  if (name === 'model') showModel();
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
  drawOptions(optionChanged);
  showState();
  if (talk.mode !== mode) begin(); else showWelcome();
}

function begin() {
  edited = -1;
  talk = {id: Date.now(), mode, turns: []};
  drawTalk();
  $('status').textContent = '';
  $('speed').innerHTML = '';
  showState();
  $('input').focus();
}

// The one button sends, or stops what is sent.
function showState() {
  $('send').textContent = running ? 'Stop' : edited >= 0 ? 'Send again' : mode === 'chat' ? 'Send' : 'Continue';
  $('send').dataset.state = running ? 'running' : 'ready';
  $('talk').setAttribute('aria-busy', Boolean(running));
  for (const id of ['tab-chat', 'tab-completion', 'new']) $(id).disabled = Boolean(running) || (id === 'tab-chat' && !model().chat_template);
  $('legend').hidden = !$('talk').querySelector('.token');
}

// ------------------------------------------------------------ the conversation

function showWelcome() {
  $('welcome').hidden = Boolean(running) || $('talk').childElementCount > 0;
  $('welcome').innerHTML = html`<p>${mode === 'chat' ? 'Ask something: the model answers, and remembers what was said before.'
    : 'Begin a text: the model continues it.'}</p>${EXAMPLES[mode].map(text => html`<button type="button" class="example">${text}</button>`)}`.text;
}

function drawTalk() {
  $('talk').innerHTML = '';
  for (const turn of talk.turns) addTurn(turn);
  $('talk').scrollTop = $('talk').scrollHeight;
  showWelcome();
}

// ------------------------------------------------------------ requests

function requestBody(prompt) {
  const body = {stream: true, stream_options: {include_usage: true}, max_tokens: options.max_tokens,
    ...(models.length > 1 ? {model: model().id} : {}), temperature: options.temperature, top_p: options.top_p, top_k: options.top_k, ignore_eos: options.ignore_eos};
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
    if (whole.tokens && running) $('status').textContent = factsOf({}, whole.tokens, whole, start);
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
  showWelcome();
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

function cancelEdit() {
  if (edited < 0) return;
  edited = -1;
  $('input').value = '';
  $('status').textContent = '';
  showState();
}

// Asks for the answer to the conversation so far, or for the continuation of a text.
async function ask(text) {
  running = new AbortController();
  showState();
  showWelcome();
  $('status').textContent = 'waiting for the first token';
  $('talk').scrollTop = $('talk').scrollHeight;
  await answer(text);
  if (talk.turns.at(-1)?.role === 'user') {  // no answer came: the message can be sent again
    $('input').value = talk.turns.pop().text;
  }
  $('status').textContent = '';
  showState();
  showWelcome();
  $('input').focus();
  remember();
}

async function send() {
  const text = $('input').value;
  if (running || (mode === 'chat' && !text.trim())) return;
  if (edited >= 0) {
    talk.turns.splice(edited);
    edited = -1;
    drawTalk();
  }
  if (mode === 'chat') {
    const turn = {role: 'user', text};
    talk.turns.push(turn);
    addTurn(turn);
    $('input').value = '';
  }
  await ask(text);
}

// What a link in a turn does.
const ACTS = {
  copy: (turn, link) => navigator.clipboard.writeText((turn.prompt ?? '') + turn.text).then(() => { link.textContent = 'Copied'; }),
  'copy-code': (turn, link) => navigator.clipboard?.writeText(link.closest('.code').querySelector('code').textContent)
    .then(() => { link.textContent = 'Copied'; }),
  tokens: (turn, link) => {
    turn.by_token = !showsTokens(turn);
    link.closest('.turn').innerHTML = turnHtml(turn).text;
    showState();
  },
  extend: turn => {
    $('input').value = turn.prompt + turn.text;
    $('input').focus();
  },
  edit: turn => {
    edited = talk.turns.indexOf(turn);
    if (edited < 0 || running) return;
    $('input').value = turn.text;
    $('input').focus();
    $('status').textContent = 'Sending replaces this message and what follows it; Escape cancels.';
    showState();
  },
  again: turn => {
    const at = talk.turns.indexOf(turn);
    if (at < 0 || running) return;
    cancelEdit();
    talk.turns.splice(at);
    drawTalk();
    ask('');
  },
};

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
    edited = -1;
    setMode(found.mode);
    drawTalk();
    if (isPhone()) $('side').open = false;
  }
  if (drop) {
    past = past.filter(p => p.id !== Number(drop));
    store.write('history', past);
    drawHistory();
  }
};

// ------------------------------------------------------------ events

$('talk').onclick = event => {
  event.target.closest('.token')?.focus();
  const act = ACTS[event.target.dataset.act], turn = event.target.closest('.turn')?.turn;
  if (act && turn) act(turn, event.target);
};
$('welcome').onclick = event => {
  if (!event.target.matches('.example')) return;
  $('input').value = event.target.textContent;
  send();
};
$('form').onsubmit = event => {
  event.preventDefault();
  if (running) running.abort(); else send();
};
$('new').onclick = () => {
  if (isPhone()) $('side').open = false;
  begin();
};
$('forget').onclick = () => { past = []; store.write('history', past); drawHistory(); };
$('defaults').onclick = () => {
  options = {...DEFAULTS, key: options.key};
  store.write('options', {...options, key: ''});
  drawOptions(optionChanged);
};
$('input').onkeydown = event => {
  const enter = event.key === 'Enter' && !event.isComposing;
  if (enter && (mode === 'chat' ? !event.shiftKey : event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
};
document.addEventListener('keydown', event => {
  if (event.key !== 'Escape') return;
  if (running) running.abort(); else cancelEdit();
  showAlternatives(null);
});
for (const name of ['chat', 'completion']) {
  $(`tab-${name}`).onclick = () => setMode(name);
  $(`tab-${name}`).onkeydown = event => {
    if (!['ArrowLeft', 'ArrowRight'].includes(event.key)) return;
    const other = $(name === 'chat' ? 'tab-completion' : 'tab-chat');
    if (!other.disabled) { other.click(); other.focus(); }
  };
}

function showModel() {
  const {id, max_model_len, chat_template} = model();
  $('name').textContent = document.title = id;
  $('context').textContent = `${max_model_len.toLocaleString()} tokens of context`;
  $('tab-chat').title = chat_template ? `chat template ${chat_template}` : 'The model has no chat template (--chat-template)';
}

async function connect() {
  try {
    const response = await fetch('v1/models', {headers: headers()});
    if (response.status === 401) {  // only then is there a field for it
      needsKey = $('side').open = true;
      drawOptions(optionChanged);
    }
    if (!response.ok) return fail(await errorText(response));
    models = (await response.json()).data;
  } catch { return fail('The server does not answer. Is it still running?'); }
  // Options that the user left alone are what fits the model, or what its folder recommends.
  const fitting = {...model().sampling, max_tokens: Math.min(DEFAULTS.max_tokens, Math.floor(model().max_model_len / 2))};
  for (const [name, value] of Object.entries(fitting)) {
    if (options[name] === DEFAULTS[name]) options[name] = value;
    DEFAULTS[name] = value;
  }
  $('talk').querySelectorAll('.error').forEach(box => box.remove());
  showModel();
  setMode(model().chat_template ? mode : 'completion');
}

if (isPhone()) $('side').open = false;
setMode(mode);
drawHistory();
connect();
