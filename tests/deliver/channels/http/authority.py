"""A certificate authority of our own making, and servers it vouches for."""

from __future__ import annotations

import ssl
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from bongsu.model import utc_now


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("An authority for tests")
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _builder(self._name, self._name, self._key.public_key()).add_extension(signs, critical=True)
        certificate = builder.add_extension(x509.BasicConstraints(True, 0), critical=True).sign(self._key, SHA256())
        # Given to a client as SSL_CERT_FILE.
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(Encoding.PEM))

    def server(self, *hosts: str, days: int = 1) -> ssl.SSLContext:
        """A server's context, with a certificate for these hosts that ends in so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = _builder(_name("A server"), self._name, key.public_key(), days).add_extension(names, critical=False)
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, SHA256())
        file = self._folder / "server.pem"
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    return x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int = 1
) -> x509.CertificateBuilder:
    ends = utc_now() + timedelta(days=days)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), ends - timedelta(days=9), ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
