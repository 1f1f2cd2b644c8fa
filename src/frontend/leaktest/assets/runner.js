// What the vectors of a page are written with. Each helper settles within LIMIT: with what the page
// saw, which is told beside the verdict but never decides it. The packets do.
'use strict';

const LIMIT = 3000;
const vectors = new Map();

const within = (promise, ms = LIMIT) =>
  Promise.race([promise, new Promise((done) => setTimeout(done, ms, 'no answer'))]);

// Runs every vector of this page at once.
async function leaktest() {
  const outcomes = {};
  const run = async ([name, attempt]) => {
    try {
      outcomes[name] = String(await within(attempt(), LIMIT + 1000));
    } catch (error) {
      outcomes[name] = String(error?.name ?? error?.message ?? error);
    }
  };
  await Promise.all([...vectors].map(run));
  return JSON.stringify(outcomes);
}

const get = async (url, init = {}) => {
  const answer = await fetch(url, {
    mode: 'no-cors', cache: 'no-store', signal: AbortSignal.timeout(LIMIT), ...init,
  });
  return `answer ${answer.status || answer.type}`;
};

const xhr = (url) => new Promise((done) => {
  const request = new XMLHttpRequest();
  request.timeout = LIMIT;
  request.onloadend = () => done(request.status ? `answer ${request.status}` : 'failed');
  request.open('GET', url);
  request.send();
});

const socket = (url) => within(new Promise((done) => {
  const opened = new WebSocket(url);
  opened.onopen = () => done('opened');
  opened.onerror = () => done('failed');
}));

const source = (url) => within(new Promise((done) => {
  const events = new EventSource(url);
  events.onopen = () => done('opened');
  events.onerror = () => { events.close(); done('failed'); };
}));

const transport = async (url) => {
  const session = new WebTransport(url);
  session.closed.catch(() => {});
  await within(session.ready);
  return 'ready or silent';
};

// Adds an element and waits for what becomes of it.
const add = (tag, attributes) => within(new Promise((done) => {
  const element = document.createElement(tag);
  element.onload = () => done('loaded');
  element.onerror = () => done('failed');
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  document.body.append(element);
  if (element.rel === 'dns-prefetch') done('added');
}));

// A frame may load twice: once for itself and once for where it goes.
const frame = (attributes) => within(new Promise((done) => {
  const element = document.createElement('iframe');
  let loads = 0;
  element.onload = () => { loads += 1; if (loads === 2) done('loaded'); };
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  document.body.append(element);
}), 1500);

const click = (tag, attributes) => {
  const target = document.createElement('iframe');
  target.name = `target${document.querySelectorAll('iframe').length}`;
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries({ target: target.name, ...attributes })) {
    element.setAttribute(name, value);
  }
  document.body.append(target, element);
  element.click();
  return 'clicked';
};

const form = (action) => {
  const target = document.createElement('iframe');
  target.name = 'form-target';
  const element = document.createElement('form');
  Object.assign(element, { method: 'post', action, target: target.name });
  document.body.append(target, element);
  element.submit();
  return 'submitted';
};

const popup = (url) => (window.open(url) ? 'opened' : 'blocked');

const worker = (code) => within(new Promise((done) => {
  const url = URL.createObjectURL(new Blob([
    `try { Promise.resolve(${code}).then(() => postMessage('loaded'), (e) => postMessage(e.name)) }
     catch (e) { postMessage(e.name) }`,
  ]));
  new Worker(url).onmessage = (message) => done(message.data);
}));

const sharedWorker = (url) => within(new Promise((done) => {
  const { port } = new SharedWorker('/worker.js');
  port.onmessage = (message) => done(message.data);
  port.postMessage(url);
}));

const registration = () => within((async () => {
  await navigator.serviceWorker.register('/worker.js');
  return navigator.serviceWorker.ready;
})()).then((found) => {
  if (!found.active) throw new Error('no service worker');
  return found;
});

const serviceWorker = async (url) => {
  const { active } = await registration();
  return within(new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = (message) => done(message.data);
    active.postMessage(url, [port2]);
  }));
};

// An uncompressed P-256 point (the curve's generator, SEC 2): a well-formed key that is nobody's.
const pushKey = Uint8Array.from(
  ('046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296'
  + '4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5').match(/../g),
  (byte) => parseInt(byte, 16),
);

const servers = (url) => (url ? [{ urls: url, username: 'u', credential: 'c' }] : []);

// Gathers candidates with one server, or none.
const ice = async (url) => {
  const connection = new RTCPeerConnection({ iceServers: servers(url) });
  const seen = [];
  const gathered = new Promise((done) => {
    connection.onicecandidate = ({ candidate }) => {
      if (candidate === null) done();
      else if (candidate.candidate) seen.push(`${candidate.type} ${candidate.address}`);
    };
  });
  connection.createDataChannel('d');
  await connection.setLocalDescription();
  await within(gathered);
  connection.close();
  return seen.length ? `candidates: ${[...new Set(seen)].join(', ')}` : 'no candidate';
};

// Lets two connections of this page agree, and then tells one that the other is elsewhere.
const peer = async (candidate) => {
  const here = new RTCPeerConnection();
  const there = new RTCPeerConnection();
  here.createDataChannel('d');
  await here.setLocalDescription();
  await there.setRemoteDescription(here.localDescription);
  await there.setLocalDescription();
  await here.setRemoteDescription(there.localDescription);
  await here.addIceCandidate({ candidate, sdpMid: '0', sdpMLineIndex: 0 });
  const ended = new Promise((done) => {
    here.oniceconnectionstatechange = () => {
      if (['connected', 'failed'].includes(here.iceConnectionState)) done();
    };
  });
  await within(ended, 2000);
  const state = here.iceConnectionState;
  here.close();
  there.close();
  return state;
};
