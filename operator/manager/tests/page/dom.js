// As much of a browser as the live page needs. Text is kept as text: nothing here reads markup.
"use strict";

class Element {
  constructor() {
    this.children = [];
    this.className = "";
    this.listeners = {};
    this.style = {};
    this.title = "";
    this.value = "";
  }
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  addEventListener(kind, listener) {
    this.listeners[kind] = listener;
  }
  set textContent(text) {
    this.children = [text];
  }
  get textContent() {
    const texts = this.children.map((child) => (child instanceof Element ? child.textContent : child));
    return texts.filter((text) => text !== "").join("|");
  }
  // Texts below this of what has a class.
  of(className) {
    const own = this.className === className ? [this.textContent] : [];
    return own.concat(...this.children.map((child) => (child instanceof Element ? child.of(className) : [])));
  }
  // Titles below this, with the class and the share of each.
  get titles() {
    const own = this.title ? [`${this.className} ${this.style.flex ?? ""} ${this.title}`] : [];
    return own.concat(...this.children.map((child) => (child instanceof Element ? child.titles : [])));
  }
}

const ids = Object.fromEntries(IDS.map((id) => [id, new Element()]));
globalThis.document = { createElement: () => new Element(), getElementById: (id) => ids[id] ?? null };
globalThis.setTimeout = () => {};
globalThis.fetch = async (url) => {
  if (url !== "v1/overview") throw new Error(`${url} is not there`);
  if (REFUSED) return { ok: false, text: async () => REFUSED };
  return { ok: true, json: async () => JSON.parse(OVERVIEW) };
};
globalThis.filterFor = (text) => {
  ids.filter.value = text;
  ids.filter.listeners.input();
};
