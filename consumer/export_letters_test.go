package consumer

// What letters and fences keep, for tests outside the package.
var (
	DecodeHeaders = decodeHeaders
	EncodeEvent   = encodeEvent
	DecodeEvent   = decodeEvent
)

// Route says what a type was registered with.
func (r *Router) Route(eventType string) string {
	h, err := r.route(eventType)
	switch {
	case err != nil:
		return err.Error()
	case h.ignored:
		return "ignored"
	case h.fn != nil:
		return "func"
	case h.batch != nil:
		return "batch"
	}
	return "tx"
}

// Processor is the router's.
func (r *Router) Processor() *Processor { return r.processor }
