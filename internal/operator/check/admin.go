package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/onceward/onceward/relay"
)

// admin tries to listen as the relay would. When the address is taken by a relay of
// this name, it runs already, and this is no failure.
func admin(ctx context.Context, cfg *relay.Config) Verdict {
	v := Verdict{Name: "admin.listen", Status: OK, Detail: cfg.Admin.Listen}
	if cfg.Admin.Listen == "off" {
		return v
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Admin.Listen)
	if err == nil {
		_ = listener.Close() // nobody came
		return v
	}
	v.Status, v.Code, v.Detail, v.Cure = Failed, relay.CodeConfig, fmt.Sprintf("cannot listen: %v", err), "choose another address, or off"
	if errors.Is(err, syscall.EADDRINUSE) && isRelay(ctx, cfg.Admin.Listen) {
		v.Status, v.Code, v.Cure = Warning, codeAddress, "nothing, if that is this relay; a second one on this machine needs another address"
		v.Detail = cfg.Admin.Listen + " is taken by a relay that runs"
	}
	return v
}

// isRelay asks whoever has the address.
func isRelay(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.Header.Get("Content-Type") == "application/json"
}
