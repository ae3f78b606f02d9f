"""Cheap callers of the API, so that a measurement on a small machine shows the server and not the callers."""

import http.client
import json
import select
import socket
import threading
import time


class Api:
    """Calls of one app, each on a new connection unless one is given."""

    def __init__(self, address, admin, patience):
        self.address, self.admin, self.patience = address, admin, patience

    def connect(self):
        host, port = self.address.rsplit(":", 1)
        return http.client.HTTPConnection(host, int(port), timeout=self.patience)

    def call(self, method, path, body=None, connection=None, key=None):
        """The unparsed answer. Parsing is left for later, because it takes CPU time that the server needs."""
        own = connection or self.connect()
        headers = {"X-Bkapi-Authorization": self.admin, "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        own.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = own.getresponse()
        content = answer.read()
        if connection is None:
            own.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {content[:300]!r}")
        return content

    def data(self, method, path, body=None, key=None):
        answer = json.loads(self.call(method, path, body, key=key))
        if answer["code"] != 0:
            raise RuntimeError(f"{path}: {answer['message']}"[:500])
        return answer["data"]

    def request(self, path, body):
        """A whole request as bytes, to be sent many times."""
        content = json.dumps(body).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: {self.address}\r\nX-Bkapi-Authorization: {self.admin_line()}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n")
        return head.encode() + content

    def admin_line(self):
        return json.dumps(json.loads(self.admin))


def closed_loop(api, requests, callers):
    """Callers in a closed loop: each sends its next request after its answer. Returns the total and each
    time."""
    host, port = api.address.rsplit(":", 1)
    waiting, took = list(reversed(requests)), []
    poll = select.epoll()
    open_ = {}
    began = time.monotonic()
    for _ in range(min(callers, len(requests))):
        stream = socket.create_connection((host, int(port)), timeout=api.patience)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        open_[stream.fileno()] = [stream, b"", 0.0]
        poll.register(stream, select.EPOLLIN)
    for caller in open_.values():
        caller[2] = time.monotonic()
        caller[0].sendall(waiting.pop())
    while open_:
        ready = poll.poll(api.patience)
        if not ready:
            raise RuntimeError(f"no answer for {api.patience} s")
        for number, _ in ready:
            caller = open_[number]
            received = caller[0].recv(1 << 16)
            if not received:
                raise RuntimeError(f"the server closed a connection; the last it said: {caller[1][:300]!r}")
            caller[1] += received
            head, found, rest = caller[1].partition(b"\r\n\r\n")
            if not found or len(rest) < content_length(head):
                continue
            now = time.monotonic()
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"refused: {caller[1][:300]!r}")
            took.append(now - caller[2])
            if waiting:
                caller[1], caller[2] = b"", now
                caller[0].sendall(waiting.pop())
            else:
                poll.unregister(number)
                caller[0].close()
                del open_[number]
    return time.monotonic() - began, took


def burst(api, request, callers):
    """Sends the same request by many callers at once, each on its own connection. Returns the answers."""
    host, port = api.address.rsplit(":", 1)
    poll, open_, answers = select.epoll(), {}, []
    for _ in range(callers):
        stream = socket.create_connection((host, int(port)), timeout=api.patience)
        open_[stream.fileno()] = [stream, b""]
        poll.register(stream, select.EPOLLIN)
    for stream, _ in open_.values():
        stream.sendall(request)
    while open_:
        ready = poll.poll(api.patience)
        if not ready:
            raise RuntimeError(f"no answer for {api.patience} s")
        for number, _ in ready:
            caller = open_[number]
            received = caller[0].recv(1 << 16)
            if not received:
                raise RuntimeError(f"the server closed a connection; the last it said: {caller[1][:300]!r}")
            caller[1] += received
            head, found, rest = caller[1].partition(b"\r\n\r\n")
            if found and len(rest) >= content_length(head):
                answers.append(json.loads(rest))
                poll.unregister(number)
                caller[0].close()
                del open_[number]
    return answers


def content_length(head):
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise RuntimeError(f"an answer without a length: {head[:300]!r}")


class Meanwhile:
    """Repeats a small call while a large one is in progress, and records the time of each answer."""

    def __init__(self, api, path, every=0.005):
        self.api, self.path, self.every = api, path, every
        self.took, self.failures = [], []
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        connection = None
        while not self.ending.is_set():
            began = time.monotonic()
            try:
                connection = connection or self.api.connect()
                self.api.call("GET", self.path, connection=connection)
                self.took.append(time.monotonic() - began)
            except (OSError, http.client.HTTPException, RuntimeError) as failure:
                connection = None
                self.failures.append((began, failure))
            self.ending.wait(self.every)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join(self.api.patience)
