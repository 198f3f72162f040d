"""Real proxies for the tests: a certificate, a way to a port of this machine, and the program itself."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

NAME = "git.example.com"


@contextmanager
def started(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """Run a proxy until the end of the block, which begins when it answers at its port."""
    with subprocess.Popen(command, cwd=folder, env={"HOME": str(folder)}, stderr=subprocess.PIPE) as process:  # noqa: S603
        try:
            for _ in range(600):
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, process.stderr.read().decode()
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def nginx(program: str, folder: Path, server: str) -> list[str]:
    """Write a configuration of nginx around `server` blocks, whose files are all in a folder; return the command."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; events {{}} http {{ access_log off; {places} {server} }}"
    )
    return [program, "-e", "stderr", "-p", str(folder), "-c", str(config)]


class Led(httpx.HTTPTransport):
    """A transport that sends every request to one port of this machine, as a name server and a router do.

    Args:
        port: The port of the proxy.
        source: The source address of the requests.
        trust: The context that checks the certificate of the proxy.
    """

    def __init__(self, port: int, source: str, trust: ssl.SSLContext) -> None:
        super().__init__(verify=trust, local_address=source)
        self._port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the port, with the server name of its URL."""
        url = request.url.copy_with(host="127.0.0.1", port=self._port)
        more = {**request.extensions, "sni_hostname": request.url.host}
        return super().handle_request(
            httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=more)
        )


def browser(folder: Path, port: int, source: str, address: str = f"https://{NAME}") -> httpx.Client:
    """Create a client that requests an address as a browser does, and reaches the proxy."""
    led = Led(port, source, ssl.create_default_context(cafile=str(folder / "cert.pem")))
    return httpx.Client(base_url=address, transport=led, headers={"origin": address}, timeout=60)


def certify(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for the name in the samples, and return its path and the path of its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for file, text in (("cert.pem", made.public_bytes(Encoding.PEM)), ("key.pem", secret)):
        (folder / file).write_bytes(text)
    return folder / "cert.pem", folder / "key.pem"
