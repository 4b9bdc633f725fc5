#!/usr/bin/env python3
"""Data behind URLs: the samples are those of the files, each part is asked for once, and what a server or the network
may do ends in another try or in a message."""
import hashlib
import hmac
import http.server
import itertools
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
import unittest
import urllib.parse

from nano_run import NANO, PATIENCE, TROUPE, NanoRun

KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a-session/token="
EMPTY = hashlib.sha256(b"").hexdigest()


def signature_of(handler):
    """AWS Signature 4 of a request, from its published definition."""
    fields = dict(re.findall(r"(\w+)=([^, ]+)", handler.headers["Authorization"]))
    _, date, region, service, _ = fields["Credential"].split("/")
    names = fields["SignedHeaders"].split(";")
    url = urllib.parse.urlsplit(handler.path)
    request = "\n".join([handler.command, url.path, url.query,
                         *(f"{n}:{' '.join(handler.headers[n].split())}" for n in names), "", ";".join(names),
                         handler.headers.get("x-amz-content-sha256", EMPTY)])
    text = "\n".join(["AWS4-HMAC-SHA256", handler.headers["x-amz-date"], f"{date}/{region}/{service}/aws4_request",
                      hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + SECRET).encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return fields, hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Store(http.server.ThreadingHTTPServer):
    """A folder in ranges. `trouble` is asked before each answer: it may give one of its own."""
    daemon_threads = True

    def __init__(self, folder, certificate=None):
        """With a certificate, a file that holds its key too, it is one of https."""
        super().__init__(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.folder, self.version, self.trouble, self.signed = folder, "v1", lambda handler: False, False
        self.by_query = {}  # its first parameter -> bytes, in place of a file's
        self.asked, self.headers, self.lock = [], [], threading.Lock()
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def bytes_asked(self, name):
        return sum(end - begin + 1 for path, begin, end in self.asked if path.endswith(name))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in dict(headers, Content_Length=len(body)).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        store = self.server
        name = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).removeprefix("/bucket").lstrip("/")
        begin, end = (int(n) for n in re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        with store.lock:
            store.asked.append((name, begin, end))
            store.headers.append(dict(self.headers))
        if store.trouble(self):
            return
        if store.signed:
            fields, good = signature_of(self) if "Authorization" in self.headers else ({}, "")
            if fields.get("Signature") != good or self.headers.get("x-amz-security-token") != TOKEN:
                self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
                return
        query, file = urllib.parse.urlsplit(self.path).query.split("&")[0], store.folder / name
        if query not in store.by_query and not file.exists():
            self.answer(404)
            return
        whole = store.by_query.get(query) or file.read_bytes()
        if begin >= len(whole):
            self.answer(416)
            return
        end = min(end, len(whole) - 1)
        version = {"ETag": f'"{store.version}"'} if store.version else {}
        self.answer(206, whole[begin:end + 1], Content_Range=f"bytes {begin}-{end}/{len(whole)}", **version)

    def trickle(self, first=b"", piece=b"x", pause=1.0):
        """An answer without end: `first`, and a piece again and again."""
        self.close_connection = True
        try:
            self.wfile.write(first)
            while True:
                self.wfile.write(piece)
                self.wfile.flush()
                time.sleep(pause)
        except OSError:
            return True  # it was given up


class TroupeRemote(NanoRun):
    def setUp(self):
        super().setUp()
        (self.folder / "store/some texts").mkdir(parents=True)
        (self.folder / "lines.jsonl").write_text("".join(
            f'{{"text": "The cat number {n} sat on mat {n * n}. "}}\n' for n in range(30000)))
        self.troupe("data", "build", "lines.jsonl", "-t", "bytes", "--no-eod", "-o", "store/some texts/train")
        self.store = Store(self.folder / "store")
        self.addCleanup(self.store.server_close)
        self.addCleanup(self.store.shutdown)

    def env(self, **more):
        own = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        return dict(own, OMP_NUM_THREADS="1", HOME=str(self.folder), **{k: v for k, v in more.items() if v})

    def run_on(self, path, name, *sets, code=0, **more):
        return self.train(f"data.train=[{{path: '{path}'}}]", f"checkpoint.dir={name}", "train.steps=6", *sets, code=code,
                          **more)

    def test_152_samples_are_those_of_the_files_and_nothing_is_asked_for_twice(self):
        self.run_on("store/some texts/train", "local")
        self.run_on(self.store.url + "/some%20texts/train", "remote")
        self.assertEqual(self.losses("local"), self.losses("remote"))
        size = (self.folder / "store/some texts/train.bin").stat().st_size
        self.assertGreater(size, 512 << 10)
        blocks = [entry for entry in self.store.asked if entry[0].endswith(".bin") and entry[2] - entry[1] > 10000]
        self.assertEqual(len(blocks), len(set(blocks)))
        self.assertLessEqual(sum(end - begin + 1 for _, begin, end in blocks), size)
        # Another run finds them on its disk.
        self.store.asked.clear()
        self.run_on(self.store.url + "/some%20texts/train", "again")
        self.assertEqual(self.losses("local"), self.losses("again"))
        self.assertEqual([e for e in self.store.asked if e[2] - e[1] > 10000], [])

    def test_152_s3_is_signed_as_its_definition_says(self):
        self.store.signed = True
        keys = {"AWS_ENDPOINT_URL": self.store.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": TOKEN, "AWS_REGION": "eu-north-1"}
        self.run_on("store/some texts/train", "local")
        self.run_on("s3://bucket/some texts/train", "signed", **keys)
        self.assertEqual(self.losses("local"), self.losses("signed"))
        said = self.run_on("s3://bucket/some texts/train", "wrong", code=3, **dict(keys, AWS_SECRET_ACCESS_KEY="other"))
        self.assertRegex(said, r"E3001 the server says 403 \(not allowed to AKIDEXAMPLE\): <Error><Code>SignatureDoes")
        said = self.run_on("s3://bucket/some texts/train", "unsigned", code=3, AWS_ENDPOINT_URL=self.store.url)
        self.assertIn("nothing was signed: for s3:// set AWS_ACCESS_KEY_ID", said)
        for name in ("wrong", "signed"):  # no secret is written down
            for file in (self.folder / name).rglob("*"):
                self.assertFalse(file.is_file() and SECRET.encode() in file.read_bytes(), file)

    def test_152_troubles_that_pass_are_passed_over(self):
        seen = {}

        def trouble(handler):
            """Each range fails at first: by a code, by half a body, by no answer."""
            with self.store.lock:
                n = seen[handler.headers["Range"]] = seen.get(handler.headers["Range"], 0) + 1
            if n > 1 or len(seen) % 4 == 0:
                return False
            if len(seen) % 4 == 1:
                handler.answer(503, b"slow down")
            elif len(seen) % 4 == 2:
                handler.send_response(206)
                begin, end = re.findall(r"\d+", handler.headers["Range"])
                handler.send_header("Content-Range", f"bytes {begin}-{end}/10000000")
                handler.send_header("Content-Length", "1000")
                handler.end_headers()
                handler.wfile.write(b"half")
                handler.close_connection = True
            else:
                handler.close_connection = True
            return True

        self.run_on("store/some texts/train", "local")
        self.store.trouble = trouble
        self.run_on(self.store.url + "/some%20texts/train", "troubled")
        self.assertEqual(self.losses("local"), self.losses("troubled"))
        self.assertGreater(sum(n > 1 for n in seen.values()), 10)

    def test_152_what_does_not_pass_is_told(self):
        url = self.store.url
        self.assertIn(f"{url}/none.bin: E3001 is not there (404)", self.run_on(url + "/none", "a", code=3))
        self.store.trouble = lambda handler: handler.answer(200, b"all of it") or True
        self.assertIn("sends more than the range", self.run_on(url + "/some%20texts/train", "b", code=3))
        self.assertIn("E3001 must be s3://BUCKET/KEY", self.run_on("s3://bucket", "c", code=3))

    def test_152_a_file_that_changes_under_a_run_is_noticed(self):
        """Its second version has the same size."""
        run = self.start("--set", f"data.train=[{{path: '{self.store.url}/some%20texts/train'}}]", "--set",
                         "train.steps=100000")
        self.wait_for_step(3)
        self.store.version = "v2"
        subprocess.run(["rm", "-r", str(self.folder / ".cache")], check=True)
        self.assertEqual(run.wait(PATIENCE), 3)
        self.assertRegex(self.said(), r'train\.bin: E3104 is not what it was when it was opened: it was version "v1"')

    def test_152_no_more_is_kept_than_was_asked_for(self):
        (self.folder / "store/large").write_bytes(os.urandom(24 << 20))
        self.train(f"data.train=[{{kind: flat, path: '{self.store.url}/large'}}]", "model.vocab=65536", "data.cache.most=4MiB",
                   f"data.cache.dir={self.folder}/kept", "train.steps=20", "checkpoint.every_steps=0", "log.every=10")
        kept = sum(f.stat().st_size for f in (self.folder / "kept").rglob("*") if f.is_file())
        self.assertGreater(kept, 1 << 20)
        self.assertLess(kept, 5 << 20)
        self.assertEqual([f.name for f in (self.folder / "kept").rglob("*staging*")], [])

    def test_152_a_block_that_the_disk_spoiled_is_read_anew(self):
        url = self.store.url + "/some%20texts/train"
        self.run_on(url, "first")
        for block in (self.folder / ".cache/troupe").rglob("*"):
            if block.is_file():
                data = bytearray(block.read_bytes())
                data[len(data) // 2] ^= 1
                block.write_bytes(data)
        self.run_on(url, "second")
        self.assertEqual(self.losses("first"), self.losses("second"))

    def text_url(self, **store):
        """A text behind an address, which is also the file store/text."""
        (self.folder / "store/text").write_bytes(b"The cat sat on the mat. " * 300)
        for name, value in store.items():
            setattr(self.store, name, value)
        return self.store.url + "/text"

    def run_text(self, name, *urls, code=0, more=()):
        sources = ", ".join(f"{{kind: text, path: '{u}'}}" for u in urls)
        return self.train(f"data.train=[{sources}]", f"checkpoint.dir={name}", "train.steps=6", *more, code=code)

    def test_F146_addresses_that_differ_in_their_query_are_two_objects(self):
        texts = {f"part={n}": bytes(97 + (i * i + n * i) % 23 for i in range(5000)) for n in (1, 2)}
        for query, text in texts.items():
            (self.folder / query).write_bytes(text)
        url = self.text_url(by_query=texts)
        for query in texts:  # one after the other, with one cache
            self.run_text("far-" + query, f"{url}?{query}")
            self.run_text("near-" + query, query)
            self.assertEqual(self.losses("far-" + query), self.losses("near-" + query))
        self.assertNotEqual(self.losses("far-part=1"), self.losses("far-part=2"))
        self.run_text("far", *(f"{url}?{query}" for query in texts))  # and both as sources of one run
        self.run_text("near", *texts)
        self.assertEqual(self.losses("far"), self.losses("near"))
        # What signs an address is made anew each time and names nothing else.
        self.store.asked.clear()
        self.run_text("signed", f"{url}?part=1&X-Amz-Date=1&X-Amz-Signature=123456")
        self.run_text("again", f"{url}?part=1&X-Amz-Date=2&X-Amz-Signature=654321")
        self.assertEqual(self.losses("again"), self.losses("near-part=1"))
        self.assertEqual([e for e in self.store.asked if e[2] - e[1] > 4900], [])

    def test_F147_another_range_than_was_asked_for_is_refused(self):
        url = self.text_url()
        whole = (self.folder / "store/text").read_bytes()
        for name, said in (("later", "bytes {0}-{1}/{2}"), ("none", None), ("odd", "bytes */{2}"), ("words", "lines {0}-{1}/{2}"),
                           ("vast", "bytes 0-{3}/9223372036854775807"), ("over", "bytes 0-{3}/99999999999999999999")):
            def trouble(handler, said=said):
                begin, end = (int(n) for n in re.findall(r"\d+", handler.headers["Range"]))
                if end - begin < 100 and name != "vast":
                    return False
                length = end - begin + 1
                end = min(end, len(whole) - 2)
                text = said and said.format(begin + 1, end + 1, len(whole), length - 1)
                handler.answer(206, whole[:length], ETag='"v1"', **({"Content_Range": text} if text else {}))
                return True
            self.store.trouble = trouble
            text = self.run_text(name, url, code=3)
            self.assertRegex(text, r"E3001 .*(not those that it is asked for|not say which bytes|at most 1125899906842624)|E3104", name)
            self.assertEqual(self.losses(name) if (self.folder / name / "log.jsonl").exists() else {}, {})

    def test_F149_without_a_version_nothing_is_kept_for_later_runs(self):
        url = self.text_url(version=None)
        said = self.run_text("first", url)
        self.assertIn("names no version of it", said)
        self.assertEqual([f for f in (self.folder / ".cache").rglob("*") if f.is_file()], [])
        text = (self.folder / "store/text").read_bytes().swapcase()  # another object of that size
        (self.folder / "store/text").write_bytes(text)
        self.run_text("second", url)
        self.run_text("local", "store/text")
        self.assertEqual(self.losses("second"), self.losses("local"))
        self.assertNotEqual(self.losses("second"), self.losses("first"))

    def redirecting(self, to):
        """The store sends all that asks it to `to`, path and all."""
        def trouble(handler):
            handler.answer(302, Location=to + handler.path)
            return True
        self.store.trouble = trouble

    def test_F150_credentials_stay_with_the_host_that_they_are_for(self):
        other = Store(self.folder / "store")
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        self.text_url()
        keys = {"AWS_ENDPOINT_URL": self.store.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": TOKEN}
        text = "data.train=[{kind: text, path: '%s'}]"
        self.redirecting(other.url)
        for name, url, more in (("s3", "s3://bucket/text", keys),
                                ("user", self.store.url.replace("//", "//me:hunter2@") + "/text", {})):
            self.store.headers.clear()
            other.headers.clear()
            self.train(text % url, f"checkpoint.dir={name}", "train.steps=6", f"data.cache.dir={name}-cache", **more)
            self.assertGreater(len(other.headers), 1)
            for headers in other.headers:
                self.assertEqual([h for h in headers if h.lower() in ("authorization", "x-amz-security-token")], [])
                self.assertNotIn(TOKEN, str(headers))
            for headers in self.store.headers:  # whose they are
                self.assertIn("Authorization", headers)
        # To the same host they go again.
        moved = []
        def trouble(handler):
            if handler.path.startswith("/bucket"):
                return False
            moved.append(handler.path)
            handler.answer(307, Location="/bucket" + handler.path)
            return True
        self.store.trouble, self.store.signed = trouble, False
        self.store.headers.clear()
        self.run_text("same", self.store.url.replace("//", "//me:hunter2@") + "/text")
        self.assertGreater(len(moved), 1)
        self.assertTrue(all("Authorization" in headers for headers in self.store.headers))
        # And what is no address of http is not followed, nor a circle.
        for to, what in (("ftp://127.0.0.1/", "no address of http or https"), ("file:///etc", "no address of http"),
                         (self.store.url, "more than 5 times")):
            self.redirecting(to)
            self.assertIn(what, self.run_text("refused", self.store.url + "/text", code=3, more=["data.cache.dir=none"]))

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl, which makes a certificate")
    def test_F150_from_https_nothing_goes_to_http_and_credentials_to_no_other_host(self):
        self.command(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
                      "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], 0)
        both = self.folder / "both.pem"
        both.write_text((self.folder / "key.pem").read_text() + (self.folder / "cert.pem").read_text())
        first, other = Store(self.folder / "store", both), Store(self.folder / "store", both)
        for store in (first, other):
            self.addCleanup(store.server_close)
            self.addCleanup(store.shutdown)
        self.text_url()
        trusted = {"SSL_CERT_FILE": str(self.folder / "cert.pem")}
        keys = {"AWS_ENDPOINT_URL": first.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": TOKEN}
        text = "data.train=[{kind: text, path: '%s'}]"
        sources = (("s3", "s3://bucket/text", keys), ("user", first.url.replace("//", "//me:hunter2@") + "/text", {}))
        to_other = {"no": None, "https": other.url, "http": self.store.url}
        for (name, url, more), (scheme, to) in itertools.product(sources, to_other.items()):
            with self.subTest(name=name, to=scheme):
                first.trouble = lambda handler, to=to: bool(to) and (handler.answer(302, Location=to + handler.path) or True)
                for store in (first, other, self.store):
                    store.headers.clear()
                said = self.train(text % url, f"checkpoint.dir={name}-{scheme}", "train.steps=6", "data.cache.dir=none",
                                  code=3 if scheme == "http" else 0, **more, **trusted)
                self.assertTrue(first.headers)
                self.assertTrue(all("Authorization" in headers for headers in first.headers))  # whose they are
                self.assertEqual(len(other.headers) > 0, scheme == "https")
                for headers in other.headers:
                    self.assertEqual([h for h in headers if h.lower() in ("authorization", "x-amz-security-token")], [])
                    self.assertNotIn(TOKEN, str(headers))
                self.assertEqual(self.store.headers, [])  # over plain http nothing is asked at all
                self.assertEqual("the server redirects from https to http at 127.0.0.1" in said, scheme == "http")
        # Nor is a server believed whose certificate nobody vouches for.
        first.trouble = lambda handler: False
        first.headers.clear()
        said = self.train(text % "s3://bucket/text", "checkpoint.dir=unknown", code=3, **keys)
        self.assertEqual(first.headers, [])
        self.assertRegex(said, "E3001 .*certificate")

    def test_F151_a_server_that_stalls_or_never_ends_is_given_up_and_asked_again(self):
        url, stalls = self.text_url(), []
        range_of = lambda handler: tuple(int(n) for n in re.findall(r"\d+", handler.headers["Range"]))
        answer = lambda handler, size: (b"HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Range: bytes %d-%d/7200\r\n"
                                        b"Content-Length: %d\r\n\r\n" % (*range_of(handler), size))
        ways = {
            "a byte a second": lambda h: h.trickle(answer(h, 7200)),
            "no header": lambda h: h.trickle(piece=b""),
            "slow headers": lambda h: h.trickle(b"HTTP/1.1 206 Partial Content\r\n", b"X-A: b\r\n", 0.3),
            "a header without end": lambda h: h.trickle(b"HTTP/1.1 206 Partial Content\r\n", b"X-A: %s\r\n" % (b"b" * 4000), 0),
            "an error without end": lambda h: h.trickle(b"HTTP/1.1 500 No\r\n\r\n", b"no " * 5000, 0),
        }

        def trouble(handler):
            """The first time that the whole text is asked for."""
            begin, end = range_of(handler)
            if end - begin < 7000 or len(stalls) > 0:
                return False
            stalls.append(way)
            return ways[way](handler)

        self.run_text("local", "store/text")
        self.store.trouble = trouble
        for number, way in enumerate(ways):
            stalls.clear()
            begin = time.monotonic()
            code = 3 if way == "a header without end" else 0  # not worth another try
            said = self.run_text(f"run{number}", url, code=code,
                                 more=["data.read_timeout=1s", f"data.cache.dir=cache{number}"])
            self.assertLess(time.monotonic() - begin, 100, way)  # two hours otherwise, or without end
            self.assertEqual(stalls, [way])
            if code == 0:
                self.assertEqual(self.losses(f"run{number}"), self.losses("local"), way)
                self.assertRegex(said, r"warning .*/text at byte 0: the server (stands still: less than 1 KiB a second for 1s "
                                       r"\(data\.read_timeout\)|says 500: no no .{200,400}); try 2 of 5 in 200ms", way)
            else:
                self.assertIn("more than 64 KiB of header", said)
            self.assertLess(len(said), 20000)

    def test_F152_a_stop_is_heard_while_a_server_stalls(self):
        url = self.text_url()
        stalls = []

        def stall(handler):
            stalls.append(handler.path)
            return handler.trickle(b"HTTP/1.1 206 Partial Content\r\n", b"X-A: b\r\n")

        # While data is opened: nothing had begun.
        self.store.trouble = stall
        train = ("--set", f"data.train=[{{kind: text, path: '{url}'}}]", "--set", "train.steps=100000", "--set",
                 "data.read_timeout=10min")
        run = self.start(*train)
        self.wait_for(lambda: stalls)
        self.assert_stops(run)
        self.assertIn("asked to stop while data was being opened", self.said())
        # While a batch is waited for, and in an evaluation: with a checkpoint.
        for name, more in (("batch", ()), ("eval", ("--set", f"data.valid=[{{kind: text, path: '{url}?x=1'}}]",
                                                    "--set", "eval.every=7"))):
            self.store.trouble = lambda handler: False
            self.store.by_query = {"x=1": b"the dog " * 900}
            stalls.clear()
            run = self.start(*train, *more, "--set", f"checkpoint.dir={name}")
            self.wait_for(lambda n=name: (self.folder / n / "log.jsonl").exists() and len(self.losses(n)) >= 3)
            self.store.trouble = stall
            while not stalls:
                subprocess.run(["rm", "-rf", str(self.folder / ".cache")], check=True)
                time.sleep(0.05)
            time.sleep(0.3)
            self.assert_stops(run)
            done = max(self.losses(name))
            self.assertEqual(self.steps(name)[-1], f"step-{done:06d}")
            self.assertEqual(self.exit_record(name)["code"], 0)

    def assert_stops(self, run):
        begin = time.monotonic()
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(PATIENCE), 0, self.said())
        self.assertLess(time.monotonic() - begin, 60)  # of the ten minutes that the server may stall

    def test_F148_no_file_of_a_run_holds_a_secret(self):
        """Passwords, signed queries and keys of the environment: in the recipe, --set, errors, logs and checkpoints."""
        self.text_url(by_query={})
        secrets = ["hunter2", "sw0rdfish", "0ctopus", "t0ken-of-a-role"]
        address = lambda sign: (self.store.url.replace("//", "//me:hunter2@") +
                                f"/text?X-Amz-Signature={sign}&sig=0ctopus&token=0ctopus")
        text = lambda sign: f"[{{kind: text, path: '{address(sign)}'}}]"
        (self.folder / "nano.yaml").write_text(NANO.replace(
            "[{kind: text, path: text.txt}]", text("sw0rdfish")).replace("tensorboard: false", "tensorboard: true"))
        env = {"AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_SESSION_TOKEN": "t0ken-of-a-role", "HF_TOKEN": "hunter2"}
        more = (f"data.valid={text('sw0rdfish')}", "eval.every=5", f"eval.prompts=['{address('sw0rdfish')}']")
        said = [self.train("train.steps=10", *more, **env)]
        # It resumes with another signature: what is found there is the same.
        said.append(self.train(f"data.train={text('0ctopus')}", "train.steps=10", "train.schedule.warmup=2",
                               "checkpoint.waive_changed=[train.length]", *more, **env))
        self.assertIn("already finished at step 10", said[-1])
        said.append(self.train("train.steps=15", "--force", *more, **env))
        self.assertIn("resumed step 10", said[-1])
        # Errors: of a server that says all that it was sent, of a recipe.
        self.store.trouble = lambda h: h.answer(403, f"{h.path} {h.headers['Authorization']} hunter2".encode()) or True
        said.append(self.train("train.steps=20", "--force", *more, "data.cache.dir=none", code=3, **env))
        self.assertIn("the server says 403", said[-1])
        said.append(self.train("train.precision='https://me:hunter2@host?sig=0ctopus'", code=2, **env))
        said.append(self.troupe("report", "run").stdout)
        files = [f for f in (self.folder / "run").rglob("*") if f.is_file()]
        self.assertGreater(len(files), 15)
        for secret in secrets:
            for file in files:
                self.assertNotIn(secret.encode(), file.read_bytes(), file.relative_to(self.folder))
            for text_said in said:
                self.assertNotIn(secret, text_said)
        self.assertIn("://***@127.0.0.1", (self.folder / "run/recipe.yaml").read_text())
        self.assertIn("X-Amz-Signature=***&sig=***", (self.folder / "run/given.yaml").read_text())
        # What was written down is a recipe, whose addresses want to be given again.
        self.store.trouble = lambda h: False
        self.troupe("config", "print", "run/recipe.yaml")
        told = self.troupe("eval", "run", code=3).stderr
        self.assertIn("without what may be a secret in it (***); give the whole address, in the recipe or with --set", told)
        self.troupe("eval", "run", "--set", f"data.valid={text('sw0rdfish')}")


if __name__ == "__main__":
    unittest.main()
