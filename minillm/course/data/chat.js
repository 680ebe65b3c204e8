// Keys, labels and scrolling of one chat; runs once in the page for each view of it.
// `style` is the chat's own <style> element, whose parents hold all that the chat shows.
(style) => {
  const root = style.closest('.minillm-chat');
  if (!root || root.dataset.ready) return;
  root.dataset.ready = 'yes';
  const part = (name, inside = '') => root.querySelector(`.minillm-chat-${name} ${inside}`);

  // A text and the request to send it travel as one value, so that neither can overtake the other.
  const SEND = '\u0004';
  const send = () => {
    const box = part('message', 'textarea');
    box.value += SEND;
    box.dispatchEvent(new Event('input', {bubbles: true}));
    box.value = box.value.replaceAll(SEND, '');
    box.focus();
  };
  const caught = (event) => { event.preventDefault(); event.stopPropagation(); };

  root.addEventListener('keydown', (event) => {
    const typing = event.target.closest('.minillm-chat-message');
    if (typing && event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      caught(event);
      send();
    } else if (event.key === 'Escape' && !part('stop').disabled) {
      caught(event);
      part('stop').click();
    }
  }, true);
  root.addEventListener('click', (event) => {
    if (event.target.closest('.minillm-chat-send')) { caught(event); send(); }
  }, true);

  // The newest line stays in view, unless the reader has scrolled up.
  let atEnd = true;
  root.addEventListener('scroll', (event) => {
    const log = event.target;
    atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  }, true);

  let asked = false;
  const arrange = () => {
    const log = part('log');
    if (log) {
      const named = {role: 'log', 'aria-live': 'off', 'aria-label': 'Conversation', tabindex: '0'};
      for (const [name, value] of Object.entries(named)) log.setAttribute(name, value);
      if (atEnd) log.scrollTop = log.scrollHeight;
    }
    part('spoken', '.widget-html-content')?.setAttribute('role', 'status');
    const instant = part('instant', 'input');
    if (instant && !asked) {
      asked = true;
      if (matchMedia('(prefers-reduced-motion: reduce)').matches && !instant.checked) instant.click();
    }
  };
  new MutationObserver(arrange).observe(root, {childList: true, subtree: true});
  arrange();
}
