package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/web"
)

const sweep = `{"specversion":"1.0","id":"1","type":"dev.reprieve.sweep.due","source":"/x","datacontenttype":"application/json","data":{"at":"2026-01-01T00:00:00Z"}}`

// bench is a server whose bus is a slice.
type bench struct {
	config    web.Config
	published []events.Event
	notices   []string
	busErr    error
	parseErr  error
	readyErr  error
}

func newBench() *bench {
	b := &bench{}
	metrics := web.NewMetrics()
	metrics.Count("resume", "handled")
	b.config = web.Config{
		Publish: func(_ context.Context, evs ...events.Event) error {
			if b.busErr != nil {
				return b.busErr
			}
			b.published = append(b.published, evs...)
			return nil
		},
		ParseNotice: func(source string, raw []byte) ([]events.Event, error) {
			b.notices = append(b.notices, source+" "+string(raw))
			if b.parseErr != nil {
				return nil, b.parseErr
			}
			e, err := events.New(events.TypeNodeNotice, "/notices/"+source, "aws/i-1", "notice-1", time.Unix(0, 0), events.Notice{Provider: source, Instance: "i-1", Kind: events.KindPreempt})
			return []events.Event{e}, err
		},
		Loopback: true,
		Ready:    func(context.Context) error { return b.readyErr },
		Metrics:  metrics.Handler(),
		Log:      slog.New(slog.DiscardHandler),
	}
	return b
}

func (b *bench) do(t testing.TB, r *http.Request) (status int, body string, header http.Header) {
	t.Helper()
	h, err := web.New(b.config)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Result().Header
}

// request is a request to a loopback server; headers are name, value, name, value...
func request(method, path, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "http://127.0.0.1:8686"+path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

const (
	one   = "application/cloudevents+json"
	batch = "application/cloudevents-batch+json"
)

func TestPostEvents(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(sweep, old, new, 1) }
	binary := func(headers ...string) []string {
		return append([]string{"ce-specversion", "1.0", "ce-id", "1", "ce-type", events.TypeSweepDue, "ce-source", "/x", "Content-Type", "application/json"}, headers...)
	}
	data := `{"at":"2026-01-01T00:00:00Z"}`
	tests := []struct {
		name       string
		body       string
		headers    []string
		busErr     error
		wantStatus int
		wantIDs    []string
		wantError  string // a part of the sentence
	}{
		{name: "structured", body: sweep, headers: []string{"Content-Type", one}, wantStatus: 202, wantIDs: []string{"1"}},
		{name: "structured with charset", body: sweep, headers: []string{"Content-Type", one + "; charset=UTF-8"}, wantStatus: 202, wantIDs: []string{"1"}},
		{name: "binary", body: data, headers: binary(), wantStatus: 202, wantIDs: []string{"1"}},
		{name: "batch", body: "[" + sweep + "," + with(`"id":"1"`, `"id":"2"`) + "]", headers: []string{"Content-Type", batch}, wantStatus: 202, wantIDs: []string{"1", "2"}},
		{name: "empty batch", body: "[]", headers: []string{"Content-Type", batch}, wantStatus: 202, wantIDs: []string{}},
		{name: "identity encoding", body: sweep, headers: []string{"Content-Type", one, "Content-Encoding", "identity"}, wantStatus: 202, wantIDs: []string{"1"}},

		{name: "plain JSON", body: sweep, headers: []string{"Content-Type", "application/json"}, wantStatus: 415, wantError: "no CloudEvent was sent"},
		{name: "no content type", body: sweep, wantStatus: 415, wantError: "no CloudEvent was sent"},
		{name: "compressed", body: sweep, headers: []string{"Content-Type", one, "Content-Encoding", "gzip"}, wantStatus: 415, wantError: "gzip"},
		{name: "too large", body: strings.Repeat(" ", 1<<20+1), headers: []string{"Content-Type", one}, wantStatus: 413, wantError: "1048576"},
		{name: "no JSON", body: "hello", headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "not JSON"},
		{name: "something behind it", body: sweep + "{}", headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "not JSON"},
		{name: "an array in place of an event", body: "[" + sweep + "]", headers: []string{"Content-Type", one}, wantStatus: 400},
		{name: "an event in place of a batch", body: sweep, headers: []string{"Content-Type", batch}, wantStatus: 400},
		{name: "no specversion", body: with(`"specversion":"1.0",`, ""), headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "specversion"},
		{name: "another specversion", body: with("1.0", "0.3"), headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "send 1.0"},
		{name: "no id", body: with(`"id":"1",`, ""), headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "id: MUST be a non-empty string"},
		{name: "unknown type", body: with("sweep.due", "nonsense"), headers: []string{"Content-Type", one}, wantStatus: 400, wantError: `"dev.reprieve.nonsense" is unknown`},
		{name: "another type's data", body: with("sweep.due", "job.started"), headers: []string{"Content-Type", one}, wantStatus: 400, wantError: `unknown field "at"`},
		{name: "data of the wrong form", body: with(`"2026-01-01T00:00:00Z"`, "7"), headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "data of dev.reprieve.sweep.due"},
		{name: "null", body: with(`{"at":"2026-01-01T00:00:00Z"}`, "null"), headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "JSON object"},
		{name: "no data", body: "", headers: binary(), wantStatus: 400, wantError: "JSON object"},
		{name: "two objects", body: data + data, headers: binary(), wantStatus: 400, wantError: "one JSON object"},
		{name: "data of another type", body: data, headers: binary("Content-Type", "text/xml"), wantStatus: 400, wantError: "text/xml"},
		{name: "data_base64 that is no string", body: `{"specversion":"1.0","data_base64":0}`, headers: []string{"Content-Type", one}, wantStatus: 400, wantError: "not a CloudEvent"},
		{name: "one bad event of a batch", body: "[" + sweep + ",{}]", headers: []string{"Content-Type", batch}, wantStatus: 400},
		{name: "one unknown type in a batch", body: "[" + sweep + "," + with("sweep.due", "nonsense") + "]", headers: []string{"Content-Type", batch}, wantStatus: 400, wantError: "event 2 of 2"},
		{name: "null in a batch", body: "[null]", headers: []string{"Content-Type", batch}, wantStatus: 400},

		{name: "the bus is away", body: sweep, headers: []string{"Content-Type", one}, busErr: fmt.Errorf("%w: secret address", handlers.ErrUnavailable), wantStatus: 503, wantError: "send it again"},
		{name: "the bus refuses", body: sweep, headers: []string{"Content-Type", one}, busErr: fmt.Errorf("%w: the id is too long", handlers.ErrInvalid), wantStatus: 400, wantError: "the id is too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench()
			b.busErr = tt.busErr
			status, body, header := b.do(t, request("POST", "/events", tt.body, tt.headers...))
			if status != tt.wantStatus {
				t.Fatalf("status: got %d %s, want %d", status, body, tt.wantStatus)
			}
			checkAnswer(t, body, header, tt.wantIDs, tt.wantError)
			if strings.Contains(body, "secret") {
				t.Errorf("the answer tells about the inside: %s", body)
			}
			var got []string
			for _, e := range b.published {
				got = append(got, e.ID())
			}
			if !slices.Equal(got, tt.wantIDs) {
				t.Errorf("published: got %v, want %v", got, tt.wantIDs)
			}
			for _, e := range b.published {
				if data, err := events.Decode[events.Due](e); err != nil || data.At.Year() != 2026 {
					t.Errorf("data: got %v, %v", data, err)
				}
			}
		})
	}
}

// checkAnswer checks an answer of the intake: the ids if there are any, one sentence otherwise.
func checkAnswer(t *testing.T, body string, header http.Header, wantIDs []string, wantError string) {
	t.Helper()
	if got, want := header.Get("Content-Type"), "application/json"; got != want {
		t.Errorf("content type: got %q, want %q", got, want)
	}
	var answer struct {
		IDs   []string `json:"ids"`
		Error string   `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("answer %q: %v", body, err)
	}
	if !slices.Equal(answer.IDs, wantIDs) || (answer.IDs == nil) != (wantIDs == nil) {
		t.Errorf("ids: got %v, want %v", answer.IDs, wantIDs)
	}
	if (answer.Error == "") != (wantIDs != nil) || !strings.Contains(answer.Error, wantError) || strings.Contains(answer.Error, "\n") {
		t.Errorf("error: got %q, want one sentence with %q", answer.Error, wantError)
	}
}

func TestPostEventsFromTheSDK(t *testing.T) {
	b := newBench()
	h, err := web.New(b.config)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	e, err := events.New(events.TypeSweepDue, "/cron", "", "from-sdk", time.Now(), events.Due{At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	e = events.WithTrace(e, events.Trace{})
	single, err := cehttp.NewHTTPRequestFromEvent(t.Context(), srv.URL+"/events", e)
	if err != nil {
		t.Fatal(err)
	}
	both, err := cehttp.NewHTTPRequestFromEvents(t.Context(), srv.URL+"/events", []events.Event{e, e})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*http.Request{single, both} {
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got, want := resp.StatusCode, http.StatusAccepted; got != want {
			t.Fatalf("got %d %s, want %d", got, body, want)
		}
	}
	if got, want := len(b.published), 3; got != want {
		t.Fatalf("published: got %d, want %d", got, want)
	}
	for _, got := range b.published {
		if got.ID() != e.ID() || string(got.Data()) != string(e.Data()) || events.TraceOf(got) != events.TraceOf(e) {
			t.Errorf("got %s, want %s", got, e)
		}
	}
}

func TestPostNotice(t *testing.T) {
	tests := []struct {
		name, source, contentType string
		parseErr, busErr          error
		wantStatus                int
		wantIDs                   []string
		wantError                 string
	}{
		{name: "aws", source: "aws", contentType: "application/json", wantStatus: 202, wantIDs: []string{"notice-1"}},
		{name: "gcp", source: "gcp", contentType: "application/json; charset=utf-8", wantStatus: 202, wantIDs: []string{"notice-1"}},
		{name: "azure", source: "azure", contentType: "application/cloudevents+json", wantStatus: 202, wantIDs: []string{"notice-1"}},
		{name: "Amazon SNS", source: "aws", contentType: "text/plain; charset=UTF-8", wantStatus: 202, wantIDs: []string{"notice-1"}},
		{name: "no content type", source: "aws", wantStatus: 202, wantIDs: []string{"notice-1"}},
		{name: "not ours", source: "aws", parseErr: fmt.Errorf("%w: a test", handlers.ErrIgnored), wantStatus: 202, wantIDs: []string{}},
		{name: "malformed", source: "aws", parseErr: fmt.Errorf("%w: detail-type is missing", handlers.ErrInvalid), wantStatus: 400, wantError: "detail-type is missing"},
		{name: "a form", source: "aws", contentType: "application/x-www-form-urlencoded", wantStatus: 415, wantError: "x-www-form-urlencoded"},
		{name: "the bus is away", source: "aws", busErr: errors.New("no"), wantStatus: 503, wantError: "send it again"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench()
			b.parseErr, b.busErr = tt.parseErr, tt.busErr
			r := request("POST", "/notices/"+tt.source, "{}")
			if tt.contentType != "" {
				r.Header.Set("Content-Type", tt.contentType)
			}
			status, body, header := b.do(t, r)
			if status != tt.wantStatus {
				t.Fatalf("status: got %d %s, want %d", status, body, tt.wantStatus)
			}
			checkAnswer(t, body, header, tt.wantIDs, tt.wantError)
			if status != 415 && !slices.Equal(b.notices, []string{tt.source + " {}"}) {
				t.Errorf("parsed: got %q", b.notices)
			}
		})
	}
}

func TestWhoMaySend(t *testing.T) {
	tests := []struct {
		name     string
		token    string
		loopback bool
		host     string
		headers  []string
		want     int
	}{
		{name: "loopback needs no token", loopback: true, want: 202},
		{name: "localhost", loopback: true, host: "localhost:8686", want: 202},
		{name: "IPv6", loopback: true, host: "[::1]:8686", want: 202},
		{name: "no port", loopback: true, host: "[::1]", want: 202},
		{name: "loopback with a token configured", loopback: true, token: "secret", want: 401},
		{name: "loopback with the token", loopback: true, token: "secret", headers: []string{"Authorization", "Bearer secret"}, want: 202},
		{name: "a rebound name", loopback: true, host: "evil.example:8686", want: 403},
		{name: "a name that begins like ours", loopback: true, host: "localhost.evil.example", want: 403},
		{name: "another site's page", loopback: true, headers: []string{"Origin", "https://evil.example"}, want: 403},
		{name: "another site's page, as the browser says", loopback: true, headers: []string{"Sec-Fetch-Site", "cross-site"}, want: 403},
		{name: "open to others, no token sent", token: "secret", host: "reprieve.example", want: 401},
		{name: "open to others, wrong token", token: "secret", host: "reprieve.example", headers: []string{"Authorization", "Bearer secre"}, want: 401},
		{name: "open to others, no scheme", token: "secret", host: "reprieve.example", headers: []string{"Authorization", "secret"}, want: 401},
		{name: "open to others, another scheme", token: "secret", host: "reprieve.example", headers: []string{"Authorization", "Basic secret"}, want: 401},
		{name: "open to others, right token", token: "secret", host: "reprieve.example", headers: []string{"Authorization", "bearer secret"}, want: 202},
	}
	for _, tt := range tests {
		for _, path := range []string{"/events", "/notices/aws"} {
			t.Run(tt.name+" "+path, func(t *testing.T) {
				b := newBench()
				b.config.Token, b.config.Loopback = tt.token, tt.loopback
				r := request("POST", path, sweep, append([]string{"Content-Type", one}, tt.headers...)...)
				if tt.host != "" {
					r.Host = tt.host
				}
				status, body, header := b.do(t, r)
				if status != tt.want {
					t.Errorf("got %d %s, want %d", status, body, tt.want)
				}
				if got, want := header.Get("WWW-Authenticate") != "", tt.want == 401; got != want {
					t.Errorf("WWW-Authenticate: got %v, want %v", got, want)
				}
				if got, want := len(b.published) > 0, tt.want == 202; got != want {
					t.Errorf("published: got %v, want %v", got, want)
				}
			})
		}
	}
}

func TestNewRefusesAnOpenDoor(t *testing.T) {
	c := newBench().config
	c.Loopback = false
	if _, err := web.New(c); !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), "token") {
		t.Errorf("got %v, want %v that asks for a token", err, handlers.ErrInvalid)
	}
}

func TestPages(t *testing.T) {
	tests := []struct {
		method, path string
		readyErr     error
		wantStatus   int
		want         string
	}{
		{"GET", "/", nil, 200, "POST /events"},
		{"HEAD", "/healthz", nil, 200, ""},
		{"GET", "/healthz", nil, 200, "ok"},
		{"GET", "/readyz", nil, 200, "ok"},
		{"GET", "/readyz", errors.New("the bus is away"), 503, "the bus is away"},
		{"GET", "/metrics", nil, 200, `reprieve_events_total{handler="resume",outcome="handled"} 1`},
		{"GET", "/metrics", nil, 200, "process_resident_memory_bytes"},
		{"GET", "/nothing", nil, 404, `{"error":`},
		{"GET", "/events", nil, 405, "use POST"},
		{"DELETE", "/notices/aws", nil, 405, "use POST"},
		{"POST", "/healthz", nil, 405, "use GET"},
		{"POST", "/notices/oracle", nil, 404, `{"error":`},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			b := newBench()
			b.readyErr = tt.readyErr
			b.config.Token = "secret" // not needed here
			status, body, _ := b.do(t, request(tt.method, tt.path, ""))
			if status != tt.wantStatus || !strings.Contains(body, tt.want) {
				t.Errorf("got %d %s, want %d with %q", status, body, tt.wantStatus, tt.want)
			}
		})
	}
}

// FuzzPostEvents: whatever is sent, the answer is 202 with the ids of what was published, or a
// 4xx with a sentence; and what is published is a valid event of a known type.
func FuzzPostEvents(f *testing.F) {
	f.Add([]byte(sweep), one, "", "")
	f.Add([]byte("["+sweep+"]"), batch, "", "")
	f.Add([]byte(`{"at":"2026-01-01T00:00:00Z"}`), "application/json", "1.0", events.TypeSweepDue)
	f.Add([]byte(`{"specversion":"1.0","data_base64":0}`), one, "", "")
	f.Add([]byte(`{"":0,"specversion":"1.0"}`), one, "0.3", "")
	f.Fuzz(func(t *testing.T, body []byte, contentType, version, typ string) {
		b := newBench()
		r := request("POST", "/events", string(body))
		r.Header.Set("Content-Type", contentType)
		if version != "" {
			r.Header.Set("ce-specversion", version)
			r.Header.Set("ce-id", "1")
			r.Header.Set("ce-source", "/x")
			r.Header.Set("ce-type", typ)
		}
		status, answer, header := b.do(t, r)
		switch {
		case status == http.StatusAccepted:
			ids := []string{}
			for _, e := range b.published {
				ids = append(ids, e.ID())
				if err := e.Validate(); err != nil {
					t.Errorf("published %s: %v", e, err)
				}
				if _, ok := events.Types[e.Type()]; !ok {
					t.Errorf("published the type %q", e.Type())
				}
			}
			checkAnswer(t, answer, header, ids, "")
		case status >= 400 && status < 500:
			checkAnswer(t, answer, header, nil, "")
			if len(b.published) > 0 {
				t.Errorf("refused with %d, and published %v", status, b.published)
			}
		default:
			t.Errorf("got %d %s", status, answer)
		}
	})
}
