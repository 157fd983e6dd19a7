// The boxes of a conversation: texts as Markdown or token by token, and what can be done with them.
// A turn: {role, text, prompt, tokens: [{label, logprob, top: [[label, logprob]], shown}], facts, by_token}. `shown` is the
// text that came with the token: nothing for one with a part of a character, or that may begin a stop text.
const $ = id => document.getElementById(id);
const SURPRISED = Math.log(1000);  // a token of probability 1/1000 or less has the full colour
const percent = logprob => logprob < Math.log(0.0005) ? '< 0.1 %' : `${(100 * Math.exp(logprob)).toFixed(1)} %`;

// Completions are read token by token, chats as Markdown, unless asked otherwise.
const showsTokens = turn => Boolean(turn.tokens?.length) && (turn.by_token ?? Boolean(turn.prompt));

function tokensHtml(turn) {
  const boxes = [];
  let first = 0, logprob = 0, shown = 0;
  turn.tokens.forEach((token, i) => {
    logprob += token.logprob;
    if (!token.shown) return;
    boxes.push(html`<span class="token" tabindex="-1" data-first="${first}" data-last="${i}"
      style="--surprise:${Math.min(1, -logprob / SURPRISED).toFixed(3)}">${token.shown}</span>`);
    [first, logprob, shown] = [i + 1, 0, shown + token.shown.length];
  });
  return html`<div class="plain">${boxes}${turn.text.slice(shown)}</div>`;
}

function turnHtml(turn) {
  const act = (name, label) => html` <button type="button" class="link" data-act="${name}">${label}</button>`;
  if (turn.role === 'user') return html`<div class="plain text">${turn.text}</div><span class="facts">${act('edit', 'Edit')}</span>`;
  if (turn.role === 'error') return html`<div class="plain">${turn.text}</div>`;
  const text = showsTokens(turn) ? tokensHtml(turn) : turn.prompt ? html`<div class="plain">${turn.text}</div>` : markdown(turn.text);
  const acts = [navigator.clipboard ? act('copy', 'Copy') : '', turn.prompt ? act('extend', 'Continue from here') : act('again', 'Regenerate'),
    turn.tokens?.length ? act('tokens', showsTokens(turn) ? 'Show text' : 'Show tokens') : ''];
  const before = turn.prompt ? html`<span class="prompt">${turn.prompt}</span>` : '';
  const facts = turn.facts ? html`<span class="facts">${turn.facts}${acts}</span>` : '';
  // A prompt and its continuation are one text.
  return html`<div class="${turn.prompt ? 'joined' : ''}">${before}${text}</div>${facts}`;
}

function addTurn(turn) {
  const box = document.createElement('div');
  box.className = `turn ${turn.role}`;
  box.turn = turn;
  box.innerHTML = turnHtml(turn).text;
  $('talk').append(box);
  return box;
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
