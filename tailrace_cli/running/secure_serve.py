"""`tailrace serve --secure`: creates a certificate, an admin user, a secret for delegation tokens, and the properties
with which clients connect."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tailrace.clock import Clock, Entropy
from tailrace.rpc.link import join_address, split_address
from tailrace.security.credentials import make_secret_file, read_secrets
from tailrace_cli.running.data_folder import SECURE
from tailrace_cli.running.first_user import read_first_user
from tailrace_cli.settings import Settings

ADMIN = "admin"
VALID_DAYS = 3650


@dataclass(frozen=True, slots=True)
class SecureFiles:
    """The files of `--secure` in DATA/secure. Only the owner can read them, as everything in DATA."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that clients must trust."""
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "cert.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def user(self) -> Path:
        """The admin user, as USER:PASSWORD."""
        return self.folder / "first.user"

    @property
    def tokens(self) -> Path:
        """The secret of delegation tokens."""
        return self.folder / "tokens.secret"

    @property
    def client(self) -> Path:
        """Properties for kcat, confluent-kafka and the commands."""
        return self.folder / "client.properties"

    @property
    def java(self) -> Path:
        """Properties for Java clients and Kafka's tools."""
        return self.folder / "java.properties"


def secured(settings: Settings, data: Path, clock: Clock, entropy: Entropy) -> Settings:
    """Return the settings with one SASL_SSL listener in place of `listen`, HTTPS, and the admin as a super user.

    Creates the files that are missing. Raises OSError.
    """
    files = SecureFiles(data / SECURE)
    files.folder.mkdir(exist_ok=True)
    if not files.certificate.exists():
        addresses = [settings.listen, settings.advertise or settings.listen, settings.http]
        hosts = dict.fromkeys(["localhost", "127.0.0.1", *(split_address(host)[0] for host in addresses)])
        _make_certificate(files, list(hosts), clock)
    if not files.user.exists():
        password = files.folder / "password"
        make_secret_file(password, entropy)
        _write(files.user, f"{ADMIN}:{read_secrets(password)[0]}\n")
        password.unlink()
    if not files.tokens.exists():
        make_secret_file(files.tokens, entropy)
    tls, security = settings.tls, settings.security
    return settings.model_copy(
        update={
            "listeners": (f"SASL_SSL://{settings.listen}",),
            "advertised_listeners": (f"SASL_SSL://{settings.advertise}",) if settings.advertise else (),
            "security": security.changed(
                super_users=(*security.super_users, f"User:{ADMIN}"),
                first_user_file=files.user,
                delegation_token_secret_file=security.delegation_token_secret_file or files.tokens,
                sasl_mechanisms=("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"),
            ),
            "tls": tls.changed(
                kafka_cert_file=files.certificate,
                kafka_key_file=files.key,
                http_cert_file=tls.http_cert_file or files.certificate,
                http_key_file=tls.http_key_file or files.key,
                gateway_cert_file=tls.gateway_cert_file or files.certificate,
                gateway_key_file=tls.gateway_key_file or files.key,
            ),
        }
    )


def write_client_files(settings: Settings, data: Path, kafka_port: int) -> str:
    """Write the properties with which clients connect. Return the text to print for the user."""
    files = SecureFiles(data / SECURE)
    host, port = split_address(settings.advertise or settings.listen)
    bootstrap = join_address(host, port or kafka_port)
    user, password = read_first_user(files.user)
    _write(
        files.client,
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={user}\nsasl.password={password}\nssl.ca.location={files.authority}\n",
    )
    _write(
        files.java,
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{user}" password="{password}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={files.authority}\n",
    )
    return (
        f"Clients connect to {bootstrap} with TLS and log in as {user!r}:\n"
        f"  kcat -F {files.client} -L\n"
        f"  kafka-topics.sh --bootstrap-server {bootstrap} --command-config {files.java} --list\n"
        f"  TAILRACE_CLIENT={files.client} tailrace user add alice\n"
        f"  TAILRACE_CLIENT={files.client} tailrace acl add --principal User:alice --operation all --topic '*'"
    )


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _make_certificate(files: SecureFiles, hosts: list[str], clock: Clock) -> None:
    """Create a certificate authority and the one certificate that it signs. The authority's key is discarded."""
    now = datetime.datetime.fromtimestamp(clock.wall_ms() / 1000, datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tailrace serve --secure")])
    authority = _sign(
        _builder(name, name, authority_key, now).add_extension(x509.BasicConstraints(True, 0), critical=True),
        authority_key,
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    builder = _builder(subject, name, key, now)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([_name_of(host) for host in hosts]), critical=False
    )
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    certificate = _sign(builder, authority_key)
    _write(files.authority, authority)
    _write(
        files.key,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
    _write(files.certificate, certificate)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> str:
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
