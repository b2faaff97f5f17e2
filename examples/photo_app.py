"""A web page that names photographs: `python photo_app.py photos.onnx`, then open the address.

Needs what `blockout export RUN --format onnx` wrote, onnxruntime, Pillow and numpy; not blockout,
not torch. The file says itself how images are prepared and what the classes are called.
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP")
LARGEST = 20_000_000
"""Bytes of a photograph."""
PAGE = b"""<!doctype html><meta charset=utf-8><meta name=viewport content="width=device-width">
<title>What is this?</title>
<style>body { font: 18px system-ui; max-width: 30em; margin: 2em auto; padding: 0 1em }
img { max-width: 100%; max-height: 50vh }</style>
<h1>What is this?</h1>
<input type=file accept=image/* id=file aria-label="A photograph">
<p><img id=seen alt=""><ol id=answers aria-live=polite></ol>
<script>
file.onchange = async () => {
  seen.src = URL.createObjectURL(file.files[0]);
  const reply = await fetch("classify", { method: "POST", body: file.files[0] });
  const lines = reply.ok ? (await reply.json()).map(a => `${a.class}: ${(100 * a.probability).toFixed(1)} %`)
                         : [await reply.text()];
  answers.replaceChildren(...lines.map(line => Object.assign(document.createElement("li"), { textContent: line })));
};
</script>"""  # noqa: E501


class Classifier:
    """An exported network and what it says about itself."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path)
        about = json.loads(self.session.get_modelmeta().custom_metadata_map["blockout"])
        self.classes, self.seen = about["classes"], about["preprocessing"]

    def __call__(self, photograph: bytes, top: int = 3) -> list[dict[str, float | str]]:
        """The most probable classes; raises ValueError if the bytes are no photograph."""
        try:
            image = Image.open(io.BytesIO(photograph), formats=FORMATS)
            pixels = self.prepared(image)
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise ValueError(f"this is no photograph that I can read: {error}") from error
        logits = np.asarray(self.session.run(None, {"images": pixels})[0])[0]
        odds = np.exp(logits - logits.max())
        best = np.argsort(-odds)[:top]
        return [
            {"class": self.classes[i], "probability": float(odds[i] / odds.sum())} for i in best
        ]

    def prepared(self, image: Image.Image) -> np.ndarray:
        """The centred square, as the network saw it in training."""
        image = ImageOps.exif_transpose(image).convert("RGB")
        side = min(image.size) * self.seen["crop_share"]
        left, top = (image.width - side) / 2, (image.height - side) / 2
        size = self.seen["image_size"]
        box = (left, top, left + side, top + side)
        square = image.resize((size, size), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(square, np.float32) / 255
        pixels = (pixels - np.float32(self.seen["mean"])) / np.float32(self.seen["std"])
        return pixels.transpose(2, 0, 1)[None]


class Handler(BaseHTTPRequestHandler):
    """Shows the page, and answers photographs that it sends."""

    classifier: Classifier

    def do_GET(self) -> None:
        self.reply(200, "text/html", PAGE) if self.path == "/" else self.reply(404)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/classify" or not 0 < length <= LARGEST:
            return self.reply(400, body=b"send one photograph of at most 20 MB to /classify")
        try:
            answers = self.classifier(self.rfile.read(length))
        except ValueError as error:
            return self.reply(415, body=str(error).encode())
        self.reply(200, "application/json", json.dumps(answers).encode())

    def reply(self, code: int, kind: str = "text/plain", body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python photo_app.py MODEL.onnx [PORT]")
    Handler.classifier = Classifier(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if sys.argv[2:] else 8000), Handler)
    print(f"open http://127.0.0.1:{server.server_port}  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
