#!/usr/bin/env python3
"""Data behind URLs: the samples are those of the files, each part is asked for once, and what a server or the network
may do ends in another try or in a message."""
import hashlib
import hmac
import http.server
import os
import re
import subprocess
import threading
import unittest
import urllib.parse

from nano_run import TROUPE, NanoRun

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

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.version, self.trouble, self.signed = folder, "v1", lambda handler: False, False
        self.asked, self.lock = [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
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
        if store.trouble(self):
            return
        if store.signed:
            fields, good = signature_of(self) if "Authorization" in self.headers else ({}, "")
            if fields.get("Signature") != good or self.headers.get("x-amz-security-token") != TOKEN:
                self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
                return
        file = store.folder / name
        if not file.exists():
            self.answer(404)
            return
        whole = file.read_bytes()
        if begin >= len(whole):
            self.answer(416)
            return
        end = min(end, len(whole) - 1)
        self.answer(206, whole[begin:end + 1], ETag=f'"{store.version}"', Content_Range=f"bytes {begin}-{end}/{len(whole)}")


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
                handler.send_header("Content-Range", "bytes 0-9/10")
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
        self.assertEqual(run.wait(60), 3)
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


if __name__ == "__main__":
    unittest.main()
