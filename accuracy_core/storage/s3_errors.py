"""What a failure of S3 is: the user's to correct, or the world's."""

from __future__ import annotations

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from accuracy_core.storage.s3_client import configured_endpoint, error_code, http_status

_FIXES = {
    "NoSuchBucket": "create the bucket, or name another one",
    "InvalidBucketName": "name a bucket that can exist",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID: the server does not know it",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY: it does not belong to the access key",
    "AccessDenied": "these credentials may not do that there: grant read, write, list and delete",
    "ExpiredToken": "renew the credentials",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
    "PartialCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY both",
    "ProfileNotFound": "check AWS_PROFILE",
    "ParamValidationError": "check the bucket's name",
}


def storage_error(error: Exception, doing: str) -> AssayError:
    """`error`, met while `doing` something with S3, as a typed one.

    ConfigurationError for names and credentials, which no repetition will mend; InfrastructureError for the rest: the
    server, the network, a full disk.
    """
    if isinstance(error, AssayError):
        return error
    name = error_code(error) or type(error).__name__
    status = http_status(error)
    if name in ("404", "NoSuchKey"):
        name = "NoSuchBucket" if "bucket" in doing else name
    if name in ("403", "Forbidden"):
        name = "AccessDenied"
    fix = _FIXES.get(name)
    server = configured_endpoint() or "AWS"
    if fix is not None:
        return ConfigurationError(f"{doing}: {name} from {server}", fix=fix)
    detail = f"{name}" + (f" (HTTP {status})" if status else "") + f": {error}"
    return InfrastructureError(
        f"{doing}: {detail}"[:1000], fix=f"is the S3 server at {server} up and reachable from here?"
    )
