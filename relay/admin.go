package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/onceward/onceward/relay/internal/profile"
)

// Handler returns the HTTP pages of the relay:
//
//   - /healthz: 200 until [Relay.Run] has returned an error. A relay that waits
//     for an operator is alive: a restart would lose nothing, and mend
//     nothing
//   - /readyz: 200 while it streams, or stands by for the holder of the slot;
//     503 with the state, a code and the reason otherwise. What waits is listed: for
//     what, since when, why. A relay that streams and waits is ready: to take
//     it away, or to start another one, would mend nothing
//   - /metrics: what is given, if anything is: that of package relayprom
//   - /debug/pprof/: with admin.pprof, Go's profiles
//
// It needs no login. It shows no event, and no word of a driver or a server: those
// are in the log. It names topics, so listen on loopback or put a proxy in front.
func (r *Relay) Handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		r.answer(w, !r.over.Load())
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := r.state()
		r.answer(w, s == StateStreaming || s == StateStandby)
	})
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	if r.cfg.Admin.Pprof {
		profile.Register(mux)
	}
	return mux
}

// page is the body of both pages.
type page struct {
	Relay   string            `json:"relay"`
	Process string            `json:"process"` // as in the log, outboxctl status and application_name
	State   State             `json:"state"`
	Since   time.Time         `json:"since"`
	Code    string            `json:"code,omitempty"`
	Error   string            `json:"error,omitempty"`
	Waiting []Wait            `json:"waiting,omitempty"`
	Held    map[string]string `json:"held,omitempty"` // why, by route
}

func (r *Relay) answer(w http.ResponseWriter, ok bool) {
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	h := r.Health()
	body := page{Relay: r.cfg.Name, Process: r.lookout.process, State: h.State, Since: h.Since.UTC(),
		Code: h.Code, Error: h.public,
		Waiting: h.Waiting}
	for i, wait := range h.Waiting {
		if wait.Detail == h.Error && h.Error != "" {
			body.Waiting[i].Detail = h.public
		}
		if wait.For == WaitRoute {
			if body.Held == nil {
				body.Held = make(map[string]string)
			}
			body.Held[wait.What] = wait.Detail
		}
	}
	_ = json.NewEncoder(w).Encode(body) // the client went away
}

// adminServer bounds what one client can hold: the pages are small, and whoever
// reaches them may be anybody.
func (r *Relay) adminServer(metrics http.Handler) *http.Server {
	return &http.Server{
		Handler: r.Handler(metrics), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
}

// ServeAdmin serves [Relay.Handler] on admin.listen until ctx ends. It returns
// nil at once when admin.listen is off, and a [*FieldError] for an address that it
// cannot listen on.
func (r *Relay) ServeAdmin(ctx context.Context, metrics http.Handler) error {
	if r.cfg.Admin.Listen == "off" {
		return nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", r.cfg.Admin.Listen)
	if err != nil {
		return fmt.Errorf("%w: %w; choose another address, or off", &FieldError{adminListen, "cannot listen"}, err)
	}
	server := r.adminServer(metrics)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = server.Shutdown(grace) // the process ends anyway
	})
	defer stop()
	r.log.InfoContext(ctx, "serving health and metrics", "address", listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin.listen: %w", err)
	}
	return nil
}
