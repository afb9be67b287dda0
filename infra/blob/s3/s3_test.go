package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/s3"
)

// Whole stores are tested with real servers in test/conformance; here servers misbehave.

func setEnv(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_SESSION_TOKEN": "", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
}

func parse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// server answers with handler and remembers the requests, without their bodies.
type server struct {
	*s3.Store
	mu       sync.Mutex
	requests []*http.Request
}

func serve(t *testing.T, handler http.HandlerFunc) *server {
	t.Helper()
	setEnv(t)
	s := &server{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r)
		s.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		handler(w, r)
	}))
	t.Cleanup(web.Close)
	var err error
	if s.Store, err = s3.Open(t.Context(), parse(t, "s3://bucket/pre/fix?path_style=true&endpoint="+web.URL)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) count(method string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if r.Method == method {
			n++
		}
	}
	return n
}

func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

func TestOpenRefuses(t *testing.T) {
	setEnv(t)
	for _, c := range []struct{ location, want string }{
		{"s3:///prefix?region=r", "write it as s3://bucket/prefix"},
		{"gs://bucket?region=r", "write it as s3://bucket/prefix"},
		{"s3://id:secret@bucket?region=r", "credentials do not belong in the URL"},
		{"s3://bucket/a%0Ab?region=r", "control character"},
		{"s3://bucket/a//b?region=r", "empty segment"},
		{"s3://bucket/" + strings.Repeat("x", 121) + "?region=r", "shorten it to 120"},
		{"s3://bucket?region=r&zone=z&acl=x", "unknown parameter acl, zone"},
		{"s3://bucket?endpoint=localhost:9000", "write it as http://host:port"},
		{"s3://bucket?endpoint=http://h:1/path", "write it as http://host:port"},
		{"s3://bucket?region=r&path_style=maybe", "write true or false"},
		{"s3://bucket?region=%zz", "escape it"},
		{"s3://bucket#part", "remove it"},
		{"s3://bucket", "add ?region=REGION or set AWS_REGION"},
	} {
		_, err := s3.Open(t.Context(), parse(t, c.location))
		if !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("Open(%s): error = %v, want invalid with %q", c.location, err, c.want)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	_, err := s3.Open(t.Context(), parse(t, "s3://bucket?region=r"))
	if handlers.Class(err) != handlers.ErrUnavailable || !strings.Contains(err.Error(), "set AWS_ACCESS_KEY_ID") {
		t.Errorf("Open without credentials: error = %v, want unavailable, naming AWS_ACCESS_KEY_ID", err)
	}
}

func TestAnswers(t *testing.T) {
	get := func(ctx context.Context, s blob.Store) error { _, _, err := s.Get(ctx, "k"); return err }
	stat := func(ctx context.Context, s blob.Store) error { _, err := s.Stat(ctx, "k"); return err }
	list := func(ctx context.Context, s blob.Store) error { _, err := s.List(ctx, "", "", 1); return err }
	remove := func(ctx context.Context, s blob.Store) error { return s.Delete(ctx, "k") }
	put := func(cond blob.Cond) func(context.Context, blob.Store) error {
		return func(ctx context.Context, s blob.Store) error {
			_, err := blob.PutBytes(ctx, s, "k", []byte("x"), cond)
			return err
		}
	}
	create, swap := put(blob.Cond{Absent: true}), put(blob.Cond{Version: "v"})
	for _, c := range []struct {
		name   string
		call   func(context.Context, blob.Store) error
		status int
		code   string
		class  error
		want   string
		sent   int // requests, where that matters
	}{
		{"get", get, 404, "NoSuchKey", handlers.ErrNotFound, "", 1},
		{"get", get, 404, "NoSuchBucket", handlers.ErrPermanent, "bucket bucket does not exist: create it", 1},
		{"get", get, 403, "AccessDenied", handlers.ErrPermanent, "access to the bucket bucket is denied (AccessDenied)", 1},
		{"get", get, 403, "SignatureDoesNotMatch", handlers.ErrPermanent, "does not accept the credentials", 1},
		{"get", get, 403, "RequestTimeTooSkewed", handlers.ErrUnavailable, "clock", 0},
		{"get", get, 400, "ExpiredToken", handlers.ErrUnavailable, "renew", 0},
		{"get", get, 301, "PermanentRedirect", handlers.ErrPermanent, "another region", 1},
		{"get", get, 500, "InternalError", handlers.ErrUnavailable, "", 3},
		{"stat", stat, 404, "", handlers.ErrNotFound, "", 1},
		{"stat", stat, 403, "", handlers.ErrPermanent, "denied", 1},
		{"list", list, 404, "NoSuchBucket", handlers.ErrPermanent, "create it", 1},
		{"delete", remove, 404, "NoSuchKey", nil, "", 1},
		{"delete", remove, 404, "NoSuchBucket", handlers.ErrPermanent, "create it", 1},
		{"delete", remove, 500, "InternalError", handlers.ErrUnavailable, "", 1},
		{"create", create, 412, "PreconditionFailed", handlers.ErrConflict, "", 1},
		{"create", create, 409, "ConditionalRequestConflict", handlers.ErrUnavailable, "", 6},
		{"create", create, 503, "SlowDown", handlers.ErrUnavailable, "", 6},
		{"create", create, 500, "InternalError", handlers.ErrUnavailable, "", 1},
		{"create", create, 501, "NotImplemented", handlers.ErrPermanent, "use another one", 1},
		{"create", create, 404, "NoSuchBucket", handlers.ErrPermanent, "create it", 1},
		{"swap", swap, 412, "PreconditionFailed", handlers.ErrConflict, "", 1},
		{"swap", swap, 404, "NoSuchKey", handlers.ErrConflict, "", 1},
		{"swap", swap, 404, "NoSuchBucket", handlers.ErrPermanent, "create it", 1},
		{"put", put(blob.Cond{}), 500, "InternalError", handlers.ErrUnavailable, "", 1},
	} {
		t.Run(fmt.Sprint(c.name, c.status, c.code), func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) { fail(w, c.status, c.code) })
			err := c.call(t.Context(), s)
			if handlers.Class(err) != c.class || (c.class != nil && !errors.Is(err, c.class)) || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error = %v, want class %v with %q", err, c.class, c.want)
			}
			if got := len(s.requests); c.sent != 0 && got != c.sent {
				t.Errorf("%d requests, want %d", got, c.sent)
			}
		})
	}
}

// The server does what it is asked to and the answer gets lost: a second attempt would meet the first.
func TestLostAnswer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			connection.Close()
		}
	})
	for _, cond := range []blob.Cond{{}, {Absent: true}, {Version: "v"}} {
		before := s.count(http.MethodPut)
		_, err := blob.PutBytes(t.Context(), s, "k", []byte("x"), cond)
		if handlers.Class(err) != handlers.ErrUnavailable {
			t.Errorf("Put(%+v): error = %v, want unavailable", cond, err)
		}
		if got := s.count(http.MethodPut) - before; got != 1 {
			t.Errorf("Put(%+v) was sent %d times, want once", cond, got)
		}
	}
}

func TestConflictingRequestIsRepeated(t *testing.T) {
	var answers = []int{409, 409, 200}
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		status := answers[0]
		answers = answers[1:]
		if status != 200 {
			fail(w, status, "ConditionalRequestConflict")
			return
		}
		w.Header().Set("ETag", `"e"`)
	})
	info, err := blob.PutBytes(t.Context(), s, "k", []byte("x"), blob.Cond{Absent: true})
	if err != nil || info.Version != "e" {
		t.Errorf("Put = %+v, error %v; want version e", info, err)
	}
}

func TestPlainRequests(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"e"`) })
	if _, err := blob.PutBytes(t.Context(), s, "a b+c", []byte("x"), blob.Cond{Version: "v"}); err != nil {
		t.Fatal(err)
	}
	r := s.requests[0]
	if got, want := r.URL.Path, "/bucket/pre/fix/a b+c"; got != want {
		t.Errorf("path = %q, want %q", got, want)
	}
	for name, want := range map[string]string{
		"If-Match": `"v"`, "If-None-Match": "", "Content-MD5": "ndTkYSaMgDT1yFZOFVxnpg==", "X-Amz-Trailer": "", "Content-Encoding": "", "X-Amz-Sdk-Checksum-Algorithm": "",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestAnswersWithoutETagAreRefused(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	})
	if _, err := blob.PutBytes(t.Context(), s, "k", nil, blob.Cond{}); !errors.Is(err, handlers.ErrPermanent) {
		t.Errorf("Put: error = %v, want permanent", err)
	}
	if _, err := s.Stat(t.Context(), "k"); !errors.Is(err, handlers.ErrPermanent) {
		t.Errorf("Stat: error = %v, want permanent", err)
	}
}

func listing(truncated bool, keys ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<ListBucketResult><IsTruncated>%v</IsTruncated>", truncated)
	for _, key := range keys {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><Size>0</Size><ETag>e</ETag><LastModified>2026-03-01T00:00:00Z</LastModified></Contents>", key)
	}
	return b.String() + "</ListBucketResult>"
}

func TestListSkipsFolders(t *testing.T) {
	pages := map[string]string{
		"pre/fix/":   listing(true, "pre/fix/a/"),
		"pre/fix/a/": listing(true, "pre/fix/a//x", "pre/fix/b"),
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, pages[r.URL.Query().Get("start-after")])
	})
	page, err := s.List(t.Context(), "", "", 2)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "b" || !page.More || time.Since(page.Now).Abs() > time.Minute {
		t.Errorf("List = %+v, error %v; want b alone, and more", page, err)
	}
}

func TestListOutOfOrderIsRefused(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, listing(false, "pre/fix/b", "pre/fix/a"))
	})
	if _, err := s.List(t.Context(), "", "", 2); !errors.Is(err, handlers.ErrPermanent) || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("List: error = %v, want permanent, out of order", err)
	}
}

// An upload that is cancelled while the server is silent ends at once and is aborted.
func TestCancelledUpload(t *testing.T) {
	cause := errors.New("the machine goes away")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("uploads"):
			_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
		case r.Method == http.MethodPut:
			cancel(cause)
			<-r.Context().Done()
		}
	})
	const size = 9 << 20
	_, err := s.Put(ctx, "k", bytes.NewReader(make([]byte, size)), size, blob.Cond{})
	if !errors.Is(err, cause) || handlers.Class(err) != handlers.ErrUnavailable {
		t.Errorf("Put: error = %v, want the cause, unavailable", err)
	}
	if got := s.count(http.MethodDelete); got != 1 {
		t.Errorf("the upload was aborted %d times, want once", got)
	}
}

func TestConflictAtTheEndOfAnUpload(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		cond   blob.Cond
		class  error
	}{
		{412, "PreconditionFailed", blob.Cond{Absent: true}, handlers.ErrConflict},
		{409, "ConditionalRequestConflict", blob.Cond{Absent: true}, handlers.ErrUnavailable},
		{404, "NoSuchKey", blob.Cond{Version: "v"}, handlers.ErrConflict},
		{404, "NoSuchUpload", blob.Cond{Version: "v"}, handlers.ErrUnavailable},
		{200, "InternalError", blob.Cond{}, handlers.ErrUnavailable}, // S3 may find out after it began to answer
	} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Query().Has("uploads"):
				_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
			case r.Method == http.MethodPut:
				w.Header().Set("ETag", `"p"`)
			case r.Method == http.MethodPost:
				fail(w, c.status, c.code)
			}
		})
		const size = 9 << 20
		_, err := s.Put(t.Context(), "k", bytes.NewReader(make([]byte, size)), size, c.cond)
		if handlers.Class(err) != c.class {
			t.Errorf("%s: error = %v, want class %v", c.code, err, c.class)
		}
		var methods []string
		for _, r := range s.requests {
			methods = append(methods, r.Method)
		}
		if want := []string{"POST", "PUT", "PUT", "POST", "DELETE"}; !slices.Equal(methods, want) {
			t.Errorf("%s: requests = %q, want %q", c.code, methods, want)
		}
	}
}

func TestPartSize(t *testing.T) {
	const mib = 1 << 20
	for _, size := range []int64{8*mib + 1, 80_000 * mib, 80_000*mib + 1, 5 << 40} {
		part := s3.PartSize(size)
		if parts := (size + part - 1) / part; parts > 10_000 || part < 8*mib || part%mib != 0 || (part > 8*mib && (size+part-mib-1)/(part-mib) <= 10_000) {
			t.Errorf("PartSize(%d) = %d: %d parts", size, part, parts)
		}
	}
}
