"""The location of the samples, for all contenders, and their upload."""

import os


def files(job):
    """The paths of all samples of a directory."""
    return sorted(os.path.join(root, name) for root, _, names in os.walk(job["raw"]) for name in names)


def environment(job):
    """The environment that configures AWS's libraries for a bucket."""
    return {
        "AWS_ENDPOINT_URL": job["endpoint"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": job["access"],
        "AWS_SECRET_ACCESS_KEY": job["secret"],
        "S3_ENDPOINT_URL": job["endpoint"],
    }


def upload(job):
    """Uploads each directory below `from` to a bucket of the same name."""
    from concurrent.futures import ThreadPoolExecutor

    import boto3
    from botocore.config import Config

    os.environ.update(environment(job))
    client = boto3.client(
        "s3", endpoint_url=job["endpoint"], region_name="us-east-1", config=Config(max_pool_connections=16)
    )

    def put(bucket, root, path):
        with open(path, "rb") as file:
            client.put_object(Bucket=bucket, Key=os.path.relpath(path, root), Body=file.read())

    with ThreadPoolExecutor(8) as pool:
        for bucket in os.listdir(job["from"]):
            client.create_bucket(Bucket=bucket)
            root = os.path.join(job["from"], bucket)
            found = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names]
            list(pool.map(lambda path: put(bucket, root, path), found))
    return {}
