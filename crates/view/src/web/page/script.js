"use strict";
new EventSource("/events").addEventListener("snapshot", event => {
  document.getElementById("programs").textContent = JSON.parse(event.data).name;
});
