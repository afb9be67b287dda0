package metadata_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/metadata"
)

// wire carries requests to a StandIn without a network, so that they take no time in a bubble.
type wire struct {
	*metadata.StandIn
	mu       sync.Mutex
	fault    func(r *http.Request) (status int, body string) // status 0: none, -1: hang until the caller gives up
	statuses map[int]int                                     // how often the StandIn answered with each
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	fault := w.fault
	w.mu.Unlock()
	rec := httptest.NewRecorder()
	if fault != nil {
		switch status, body := fault(r); status {
		case 0:
		case -1:
			<-r.Context().Done()
			return nil, r.Context().Err()
		default:
			rec.WriteHeader(status)
			_, _ = rec.WriteString(body)
			return rec.Result(), nil
		}
	}
	w.ServeHTTP(rec, r)
	w.mu.Lock()
	w.statuses[rec.Code]++
	w.mu.Unlock()
	return rec.Result(), nil
}

func (w *wire) disturb(fault func(r *http.Request) (int, string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = fault
}

func (w *wire) count(status int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statuses[status]
}

// always answers with status below path, and is in order elsewhere.
func always(path string, status int, body string) func(*http.Request) (int, string) {
	return func(r *http.Request) (int, string) {
		if strings.HasSuffix(r.URL.Path, path) {
			return status, body
		}
		return 0, ""
	}
}

// machine is a poller in a bubble, polling every second.
type machine struct {
	*wire
	log   lockedBuffer
	heard []string // "kind seconds-left", with "-" in front of cancellations
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func run(t *testing.T, script func(m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{wire: &wire{StandIn: metadata.NewStandIn("i-1"), statuses: map[int]int{}}}
		poller := &metadata.AWS{Client: &http.Client{Transport: m.wire}, Log: slog.New(slog.NewTextHandler(&m.log, nil))}
		if _, err := poller.Detect(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			poller.Run(ctx, time.Second, func(n events.Notice) {
				what := string(n.Kind)
				if n.Cancelled {
					what = "-" + what
				}
				if n.Deadline != nil {
					what += " " + time.Until(*n.Deadline).Round(time.Second).String()
				}
				m.mu.Lock()
				m.heard = append(m.heard, what)
				m.mu.Unlock()
			})
		}()
		m.pass(500 * time.Millisecond) // from here on, polls come half a second from every step of the script
		script(m)
		cancel()
		<-ended
	})
}

// pass lets time go by.
func (m *machine) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (m *machine) want(t *testing.T, heard ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if diff := cmp.Diff(heard, m.heard); diff != "" {
		t.Errorf("heard (-want +got)\n%s", diff)
	}
}

func in(d time.Duration) time.Time { return time.Now().Add(d + 500*time.Millisecond) }

func TestNoticeIsHeardOnceAndWithinAPoll(t *testing.T) {
	run(t, func(m *machine) {
		m.pass(time.Minute)
		m.want(t)
		m.Interrupt("terminate", in(2*time.Minute))
		m.pass(500 * time.Millisecond)
		m.want(t, "preempt 2m0s")
		m.pass(10 * time.Minute)
		m.want(t, "preempt 2m0s")
	})
}

func TestHibernationIsHeardOnce(t *testing.T) {
	run(t, func(m *machine) {
		m.Interrupt("hibernate", in(time.Minute))
		m.pass(10 * time.Minute)
		m.want(t, "hibernate 0s")
	})
}

func TestInterruptionAndRebalanceTogether(t *testing.T) {
	run(t, func(m *machine) {
		m.Rebalance(time.Now())
		m.Interrupt("stop", in(2*time.Minute))
		m.pass(time.Minute)
		m.want(t, "stop 2m0s", "rebalance")
	})
}

func TestMovedDeadlineIsHeardAgain(t *testing.T) {
	run(t, func(m *machine) {
		m.Interrupt("terminate", in(2*time.Minute))
		m.pass(time.Second)
		m.Interrupt("terminate", in(2*time.Minute)) // a second later: a copy
		m.pass(time.Second)
		m.Interrupt("terminate", in(5*time.Minute))
		m.pass(time.Second)
		m.Interrupt("hibernate", in(5*time.Minute)) // another kind
		m.pass(time.Minute)
		m.want(t, "preempt 2m0s", "preempt 5m0s", "hibernate 0s")
	})
}

func TestWithdrawnNotice(t *testing.T) {
	run(t, func(m *machine) {
		m.Interrupt("terminate", in(2*time.Minute))
		m.Rebalance(time.Now())
		m.pass(time.Second)
		m.want(t, "preempt 2m0s", "rebalance")
		m.Withdraw()
		m.pass(time.Second)
		m.want(t, "preempt 2m0s", "rebalance") // once may be an accident
		m.pass(time.Second)
		m.want(t, "preempt 2m0s", "rebalance", "-preempt 1m58s", "-rebalance")
		m.pass(time.Minute)
		m.Interrupt("terminate", in(2*time.Minute))
		m.pass(time.Minute)
		m.want(t, "preempt 2m0s", "rebalance", "-preempt 1m58s", "-rebalance", "preempt 2m0s")
	})
}

func TestOneAbsenceIsNoWithdrawal(t *testing.T) {
	run(t, func(m *machine) {
		m.Interrupt("terminate", in(2*time.Minute))
		for range 5 {
			m.pass(time.Second)
			m.disturb(always(notice.IMDSSpotAction, http.StatusNotFound, ""))
			m.pass(time.Second)
			m.disturb(nil)
		}
		m.pass(time.Second)
		m.want(t, "preempt 2m0s")
	})
}

func TestTroubleIsWaitedOut(t *testing.T) {
	for name, fault := range map[string]func(*http.Request) (int, string){
		"overload":              always("", http.StatusServiceUnavailable, ""),
		"silence":               always("", -1, ""),
		"garbage":               always("", http.StatusOK, "<html>"),
		"forbidden":             always("", http.StatusForbidden, ""),
		"tokens never accepted": always(notice.IMDSSpotAction, http.StatusUnauthorized, ""),
		"no tokens":             func(r *http.Request) (int, string) { return http.StatusUnauthorized, "" },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(m *machine) {
				m.Interrupt("terminate", in(time.Hour))
				m.pass(time.Second)
				m.disturb(fault)
				m.pass(10 * time.Minute)
				m.want(t, "preempt 1h0m0s")
				if got := strings.Count(m.log.String(), "level=WARN"); got != 1 {
					t.Errorf("got %d warnings, want 1\n%s", got, m.log.String())
				}
				m.disturb(nil)
				m.Interrupt("terminate", in(2*time.Hour))
				m.pass(10 * time.Second)
				m.want(t, "preempt 1h0m0s", "preempt 2h0m0s")
				if !strings.Contains(m.log.String(), "answers again") {
					t.Errorf("the end of the trouble is not told\n%s", m.log.String())
				}
			})
		})
	}
}

func TestOneFailingPathDoesNotHideTheOther(t *testing.T) {
	for name, status := range map[string]int{"error": http.StatusInternalServerError, "silence": -1} {
		t.Run(name, func(t *testing.T) {
			run(t, func(m *machine) {
				m.disturb(always(notice.IMDSSpotAction, status, ""))
				m.Rebalance(time.Now())
				m.pass(10 * time.Second)
				m.want(t, "rebalance")
			})
		})
	}
}

func TestStopsInMidCall(t *testing.T) {
	var log *lockedBuffer
	run(t, func(m *machine) { // returns only when Run has
		m.disturb(always("", -1, ""))
		m.pass(time.Second)
		log = &m.log
	})
	if got := log.String(); got != "" {
		t.Errorf("being stopped is no trouble to tell of, but got\n%s", got)
	}
}

func TestTokenIsRenewedBeforeItRunsOut(t *testing.T) {
	run(t, func(m *machine) {
		var tokens atomic.Int64
		m.disturb(func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut {
				tokens.Add(1)
				if got, want := r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds"), "21600"; got != want {
					t.Errorf("ttl: got %s, want %s", got, want)
				}
			}
			return 0, ""
		})
		m.pass(13 * time.Hour)
		if got := tokens.Load(); got < 4 || got > 8 {
			t.Errorf("got %d tokens in 13 hours, each good for 6 hours", got)
		}
		if got := m.count(http.StatusUnauthorized); got != 0 {
			t.Errorf("got %d answers 401, want none", got)
		}
	})
}

// The service throttles: what a poll asks is bounded, also when nothing is as it should be.
func TestRequestsPerPoll(t *testing.T) {
	for name, c := range map[string]struct {
		refuse func(r *http.Request) (int, string)
		want   int64
	}{
		"quiet":           {func(*http.Request) (int, string) { return 0, "" }, 2},
		"down":            {func(*http.Request) (int, string) { return http.StatusServiceUnavailable, "" }, 2},
		"refuses tokens":  {func(r *http.Request) (int, string) { return http.StatusUnauthorized, "" }, 4}, // old one, new one, for each path
		"forgets tokens":  {always("/spot/instance-action", http.StatusUnauthorized, ""), 4},               // old, token, new; the other path
		"forgets all":     {func(r *http.Request) (int, string) { return map[string]int{http.MethodGet: 401}[r.Method], "" }, 6},
		"announces a lot": {always("", http.StatusOK, strings.Repeat("x", 1<<20)), 2},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(m *machine) {
				var requests atomic.Int64
				m.disturb(func(r *http.Request) (int, string) {
					requests.Add(1)
					return c.refuse(r)
				})
				const polls = 60
				m.pass(polls * time.Second)
				if got, want := requests.Load(), polls*c.want; got != want {
					t.Errorf("got %d requests in %d polls, want %d", got, polls, want)
				}
			})
		})
	}
}

// The StandIn refuses a request with two token headers, as the service does.
func TestLostTokenIsReplaced(t *testing.T) {
	run(t, func(m *machine) {
		for range 3 {
			m.Forget()
			m.Interrupt("terminate", in(2*time.Minute))
			m.pass(500 * time.Millisecond)
			m.Withdraw()
			m.pass(4500 * time.Millisecond)
		}
		m.want(t, "preempt 2m0s", "-preempt 1m58s", "preempt 2m0s", "-preempt 1m58s", "preempt 2m0s", "-preempt 1m58s")
		if got, want := m.count(http.StatusUnauthorized), 3; got != want {
			t.Errorf("answers 401: got %d, want %d", got, want)
		}
	})
}

func TestDetect(t *testing.T) {
	for name, c := range map[string]struct {
		id    string
		fault func(*http.Request) (int, string)
		says  string // of the error; empty for none
		takes time.Duration
	}{
		"ec2":              {id: "i-0b662ef9931388ba0"},
		"newline":          {id: "i-0b662ef9931388ba0\n"},
		"another cloud":    {fault: always("token", http.StatusNotFound, ""), says: "HTTP status 404"},
		"switched off":     {fault: always("token", http.StatusForbidden, ""), says: "HTTP status 403"},
		"nobody":           {fault: always("token", -1, ""), says: "deadline exceeded", takes: 500 * time.Millisecond},
		"no instance id":   {fault: always("instance-id", http.StatusNotFound, ""), says: "instance id"},
		"a page":           {fault: always("", http.StatusOK, "<html>"), says: `"<html>"`},
		"hangs afterwards": {fault: always("instance-id", -1, ""), says: "deadline exceeded", takes: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{StandIn: metadata.NewStandIn(c.id), fault: c.fault, statuses: map[int]int{}}
				poller := &metadata.AWS{Endpoint: "http://metadata/", Client: &http.Client{Transport: w}, Log: slog.New(slog.DiscardHandler)}
				begun := time.Now()
				got, err := poller.Detect(t.Context())
				if took := time.Since(begun); took != c.takes {
					t.Errorf("took %s, want %s", took, c.takes)
				}
				if c.says == "" {
					if want := (events.Node{Provider: "aws", Instance: "i-0b662ef9931388ba0"}); err != nil || got != want {
						t.Errorf("got %v, %v, want %v", got, err, want)
					}
					return
				}
				if !errors.Is(err, handlers.ErrUnavailable) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want ErrUnavailable that says %q", err, c.says)
				}
				if strings.Contains(err.Error(), "hop limit") {
					t.Errorf("got %v, but nobody was there", err)
				}
			})
		})
	}
}

// From inside a container with a hop limit of 1, connections are made but the token never arrives.
func TestDetectNamesTheHopLimit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, err = (&metadata.AWS{Endpoint: "http://" + l.Addr().String(), Log: slog.New(slog.DiscardHandler)}).Detect(t.Context())
	if !errors.Is(err, handlers.ErrUnavailable) || !strings.Contains(err.Error(), "hop limit") {
		t.Errorf("got %v, want ErrUnavailable that names the hop limit", err)
	}
}

func TestConnectionIsKept(t *testing.T) {
	var connections, requests atomic.Int64
	standIn := metadata.NewStandIn("i-1")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 100 {
			standIn.Interrupt("stop", time.Now().Add(time.Minute))
		}
		standIn.ServeHTTP(w, r)
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	poller := &metadata.AWS{Endpoint: server.URL, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if _, err := poller.Detect(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	poller.Run(ctx, time.Millisecond, func(events.Notice) { cancel() })
	if got := connections.Load(); got != 1 {
		t.Errorf("got %d connections for %d requests, want 1", got, requests.Load())
	}
}

func TestStandInWantsTokens(t *testing.T) {
	standIn := metadata.NewStandIn("i-1")
	call := func(method, path string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		standIn.ServeHTTP(w, r)
		return w
	}
	const ttl, token = "X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"
	given := call("PUT", "/latest/api/token", ttl, "60").Body.String()
	for name, c := range map[string]struct {
		got  *httptest.ResponseRecorder
		want int
	}{
		"no ttl":      {call("PUT", "/latest/api/token"), http.StatusBadRequest},
		"no token":    {call("GET", "/latest/meta-data/instance-id"), http.StatusUnauthorized},
		"wrong token": {call("GET", "/latest/meta-data/instance-id", token, "x"), http.StatusUnauthorized},
		"two tokens":  {call("GET", "/latest/meta-data/instance-id", token, given, token, given), http.StatusUnauthorized},
		"right token": {call("GET", "/latest/meta-data/instance-id", token, given), http.StatusOK},
		"no notice":   {call("GET", "/latest/meta-data/spot/instance-action", token, given), http.StatusNotFound},
		"POST":        {call("POST", "/latest/meta-data/instance-id", token, given), http.StatusNotFound},
	} {
		if got := c.got.Code; got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
	standIn.Forget()
	if got, want := call("GET", "/latest/meta-data/instance-id", token, given).Code, http.StatusUnauthorized; got != want {
		t.Errorf("forgotten token: got %d, want %d", got, want)
	}
}
