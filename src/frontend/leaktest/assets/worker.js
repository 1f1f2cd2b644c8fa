// Both the shared and the service worker: fetches what it is told to.
'use strict';

const answer = (url, port) => fetch(url, { mode: 'no-cors', cache: 'no-store' })
  .then((response) => port.postMessage(`answer ${response.status || response.type}`))
  .catch((error) => port.postMessage(error.name));

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => answer(data, port);
};
self.addEventListener('message', ({ data, ports: [port] }) => { if (port) answer(data, port); });
self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));
