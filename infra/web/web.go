// Package web is the HTTP face of the control plane: it takes in CloudEvents and the clouds'
// native notices, and answers probes and Prometheus. It decides nothing about events: what is
// well-formed goes to the bus, the rest is refused with one sentence that says what to change.
// It ends no TLS; that is the load balancer's or the proxy's part.
package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// Config is what New needs. All fields but Token and Loopback are required.
type Config struct {
	// Publish puts events on the bus. ErrInvalid is the sender's fault, anything else ours.
	Publish func(ctx context.Context, evs ...events.Event) error
	// ParseNotice turns what the cloud source (aws, gcp, azure) sent into events, possibly none.
	// ErrIgnored: nothing that concerns us. Any other error: malformed.
	ParseNotice func(source string, raw []byte) ([]events.Event, error)
	// Token is what senders have to present as a bearer token.
	Token string
	// Loopback says that the listener is bound to a loopback address: then Token may be empty,
	// and requests for any other host name are refused (DNS rebinding).
	Loopback bool
	// Ready says whether the control plane can do its work: the error says why not.
	Ready   func(ctx context.Context) error
	Metrics http.Handler
	Log     *slog.Logger
}

// New returns the handler of everything that the control plane serves. ErrInvalid: a token is
// missing. Probes, metrics and the front page need no token; they tell nothing about jobs.
func New(c Config) (http.Handler, error) {
	if c.Token == "" && !c.Loopback {
		return nil, fmt.Errorf("%w: set a token (REPRIEVE_TOKEN), or listen on 127.0.0.1: anybody who reaches this address could stop jobs", handlers.ErrInvalid)
	}
	s := &server{c}
	mux := http.NewServeMux()
	for _, route := range []struct {
		method, path string
		handle       http.HandlerFunc
	}{
		{http.MethodPost, "/events", s.authorized(s.postEvents)},
		{http.MethodPost, "/notices/aws", s.authorized(s.postNotice("aws"))},
		{http.MethodPost, "/notices/gcp", s.authorized(s.postNotice("gcp"))},
		{http.MethodPost, "/notices/azure", s.authorized(s.postNotice("azure"))},
		{http.MethodGet, "/healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, "ok\n") }},
		{http.MethodGet, "/readyz", s.readyz},
		{http.MethodGet, "/metrics", c.Metrics.ServeHTTP},
		{http.MethodGet, "/{$}", func(w http.ResponseWriter, _ *http.Request) { text(w, frontPage) }},
	} {
		mux.HandleFunc(route.method+" "+route.path, route.handle)
		mux.HandleFunc(route.path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", route.method)
			refuse(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s does not answer %s; use %s", r.URL.Path, r.Method, route.method))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "there is nothing at this address; GET / lists what there is")
	})
	return s.guarded(mux), nil
}

const frontPage = `Reprieve control plane

POST /events           CloudEvents 1.0 (binary, structured or batch mode)
POST /notices/aws      EventBridge events, as they are
POST /notices/gcp      Compute Engine notices, as they are
POST /notices/azure    Scheduled Events and Event Grid events, as they are
GET  /healthz          is this process alive
GET  /readyz           can it do its work
GET  /metrics          Prometheus metrics

POST needs "Authorization: Bearer TOKEN" if a token is configured.
`

type server struct{ Config }

// guarded refuses what a web page in somebody's browser could send here.
func (s *server) guarded(next http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "requests from web pages of other sites are refused")
	}))
	next = sameOrigin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if s.Loopback && !loopbackName(r.Host) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("the host %.100q is refused; address this server as localhost, 127.0.0.1 or [::1]", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func loopbackName(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.EqualFold(host, "localhost") || host == "127.0.0.1" || host == "::1"
}

// authorized lets only requests with the token through.
func (s *server) authorized(next http.HandlerFunc) http.HandlerFunc {
	want := sha256.Sum256([]byte(s.Token))
	return func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(token)) // of equal length, whatever was sent
		if s.Token != "" && (!strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "the bearer token is missing or wrong; send the header Authorization: Bearer TOKEN")
			return
		}
		next(w, r)
	}
}

func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	if err := s.Ready(r.Context()); err != nil {
		s.Log.Warn("not ready", "error", err)
		refuse(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
		return
	}
	text(w, "ok\n")
}

// refuse answers with one sentence for people.
func refuse(w http.ResponseWriter, status int, sentence string) {
	answer(w, status, map[string]string{"error": sentence})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only with the connection
}

func text(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(body))
}
