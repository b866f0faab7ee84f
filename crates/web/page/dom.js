// Elements of the page. Texts become text nodes, whatever is in them.

/** The element with this identity. */
export const byId = id => document.getElementById(id);

const make = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) if (value !== "") node.setAttribute(name, value);
  node.append(...children);
  return node;
};

/** An element of HTML with attributes and children. */
export const element = (name, attributes = {}, ...children) => make(document.createElement(name), attributes, children);
/** An element of SVG. */
export const svg = (name, attributes = {}, ...children) => make(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

