"""Keys of an ASGI scope by which middlewares and endpoints tell each other of one request."""

ARRIVED = "ringkv.arrived"  # `perf_counter` when the request arrived
CALLER = "ringkv.caller"  # the `Caller` of the request
STATUS = "ringkv.status"  # of the response, once it has begun
REQUEST_ID = "ringkv.request_id"
TRACE_ID = "ringkv.trace_id"  # only of requests that are traced
MODEL = "ringkv.model"  # only of requests that generate: the model's own name
USAGE_COUNTER = "ringkv.usage_counter"  # only of requests that generate
STREAM_ERROR = "ringkv.stream_error"  # the `ErrorKind` of an error that ended a stream which had begun
REASON = "ringkv.reason"  # field and code of the error that was the answer
CANCELLED = "ringkv.cancelled"  # the client disconnected from a stream which had begun
