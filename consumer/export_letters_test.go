package consumer

// What letters and fences keep, for tests outside the package.
var (
	DecodeHeaders = decodeHeaders
	EncodeEvent   = encodeEvent
	DecodeEvent   = decodeEvent
)
