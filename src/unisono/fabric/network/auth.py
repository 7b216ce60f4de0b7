"""Who belongs to a run: a certificate of the run's own authority, and mutual TLS 1.3 with it.

The launcher makes an authority for each run, lets it sign one certificate, and forgets its key. The
certificate, its private key and the authority's certificate are the run's *credentials*, the secret
that every member is given. Both ends of a connection show the certificate and accept no other
authority than the run's, so whoever lacks the private key is refused by TLS itself.
"""

from __future__ import annotations

import os
import ssl
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unisono.errors import UserError

LIFETIME = timedelta(days=30)
MEMBER = "member.unisono.internal"
"""The name in the certificate."""
PROTOCOL = "unisono/2"
"""What both ends must speak (ALPN)."""
_CLOCKS = timedelta(days=1)
"""How far the clocks of the machines may differ."""
_BEGIN = "-----BEGIN CERTIFICATE-----"
_RENEW = "start the run again with --resume, which makes a new one"


def make_credentials(lifetime: timedelta = LIFETIME) -> str:
    """Credentials for a new run, as PEM: private key, certificate, the authority's certificate."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer, until = "Unisono run", datetime.now(timezone.utc) + lifetime
    root = (
        _certificate(issuer, issuer, authority.public_key(), authority.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(authority, hashes.SHA256())
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    member = (
        _certificate(MEMBER, issuer, key.public_key(), authority.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(MEMBER)]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificates = [c.public_bytes(serialization.Encoding.PEM) for c in (member, root)]
    return b"".join([private, *certificates]).decode()


@lru_cache
def tls_contexts(credentials: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """How to accept connections, and how to make them.

    Raises:
        UserError: these are no credentials, or they have expired.
    """
    try:
        member = x509.load_pem_x509_certificate(credentials.encode())
        contexts = [
            _context(purpose, credentials)
            for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        ]
    except (ValueError, ssl.SSLError):
        raise UserError(
            "these are no credentials of a run: UNISONO_CREDENTIALS must be what the launcher made"
        ) from None
    if member.not_valid_after_utc < datetime.now(timezone.utc):
        until = member.not_valid_after_utc.strftime("%Y-%m-%d %H:%M")
        raise UserError(f"the run's certificate expired on {until} UTC: {_RENEW}")
    return contexts[0], contexts[1]


def is_tls_failure(error: BaseException | None) -> bool:
    """Whether the two ends did not understand each other, rather than lose each other."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)


def explain(error: BaseException) -> str:
    """Why a connection did not come about, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = error.verify_message
    elif isinstance(error, ssl.SSLError):
        found = (error.reason or str(error)).replace("_", " ").lower()
    else:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    if "expired" in found:
        return f"the run's certificate has expired: {_RENEW}"
    if "certificate" in found or "unknown ca" in found:
        return f"it does not belong to this run ({found})"
    return f"TLS failed ({found})"


def _certificate(
    name: str,
    issuer: str,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    until: datetime,
) -> x509.CertificateBuilder:
    subject, by = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer)
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(until, datetime.now(timezone.utc)) - _CLOCKS)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment"]
    names += ["key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{name: name in allowed for name in names})


def _context(purpose: int, credentials: str) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials[credentials.rindex(_BEGIN) :])
    context.set_alpn_protocols([PROTOCOL])
    if purpose == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # every connection is authenticated anew
    # OpenSSL reads private keys from files only: this one is in memory.
    secret = os.memfd_create("unisono-credentials", os.MFD_CLOEXEC)
    try:
        os.write(secret, credentials.encode())
        context.load_cert_chain(f"/proc/self/fd/{secret}")
    finally:
        os.close(secret)
    return context
