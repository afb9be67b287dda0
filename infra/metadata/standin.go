package metadata

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/events/notice"
)

// StandIn plays the EC2 instance metadata service of one machine, tokens required, for `reprieve
// demo` and tests. It is an http.Handler, safe for concurrent use.
type StandIn struct {
	mu     sync.Mutex
	token  string
	tokens int
	bodies map[string]string // by path below /latest/meta-data/
}

// NewStandIn returns the service of a machine without notices.
func NewStandIn(instance string) *StandIn {
	return &StandIn{bodies: map[string]string{"instance-id": instance}}
}

// Interrupt announces a spot interruption: action is terminate, stop or hibernate.
func (s *StandIn) Interrupt(action string, at time.Time) {
	body, _ := json.Marshal(map[string]string{"action": action, "time": at.UTC().Format(time.RFC3339)})
	s.set(notice.IMDSSpotAction, string(body))
}

// Rebalance recommends to move elsewhere.
func (s *StandIn) Rebalance(at time.Time) {
	body, _ := json.Marshal(map[string]string{"noticeTime": at.UTC().Format(time.RFC3339)})
	s.set(notice.IMDSRebalance, string(body))
}

// Withdraw takes all notices back.
func (s *StandIn) Withdraw() {
	s.set(notice.IMDSSpotAction, "")
	s.set(notice.IMDSRebalance, "")
}

// Forget makes all tokens invalid, as a restart of the service does.
func (s *StandIn) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = ""
}

func (s *StandIn) set(path, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if body == "" {
		delete(s.bodies, path)
		return
	}
	s.bodies[path] = body
}

// ServeHTTP implements http.Handler.
func (s *StandIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" {
		if r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.tokens++
		s.token = "token-" + strings.Repeat("x", s.tokens)
		_, _ = w.Write([]byte(s.token))
		return
	}
	if given := r.Header.Values("X-Aws-Ec2-Metadata-Token"); len(given) != 1 || given[0] != s.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	body, ok := s.bodies[strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")]
	if !ok || r.Method != http.MethodGet {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = w.Write([]byte(body))
}
