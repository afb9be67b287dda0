package harness

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// FakeS3 is gofakes3 with what it lacks beside S3: CompleteMultipartUpload ignores conditions and
// answers with another ETag than the object then has.
func FakeS3() http.Handler {
	fake := gofakes3.New(s3mem.New()).Server()
	var writes sync.Mutex // makes a condition and its write one step
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		completes := r.Method == http.MethodPost && query.Has("uploadId")
		replaces := (r.Method == http.MethodPut || r.Method == http.MethodDelete) && !query.Has("uploadId")
		if completes || replaces {
			writes.Lock()
			defer writes.Unlock()
		}
		if !completes {
			fake.ServeHTTP(w, r)
			return
		}
		exists, etag := head(fake, r)
		ifMatch := r.Header.Get("If-Match")
		switch {
		case r.Header.Get("If-None-Match") == "*" && exists, ifMatch != "" && exists && ifMatch != etag:
			refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		case ifMatch != "" && !exists:
			refuse(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		answer := httptest.NewRecorder()
		fake.ServeHTTP(answer, r)
		_, etag = head(fake, r)
		body := regexp.MustCompile(`<ETag>.*?</ETag>`).ReplaceAll(answer.Body.Bytes(), []byte("<ETag>"+etag+"</ETag>"))
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body)
	})
}

// head asks for the object that r is about; its ETag comes quoted.
func head(fake http.Handler, r *http.Request) (exists bool, etag string) {
	ask := r.Clone(r.Context())
	ask.Method, ask.Body, ask.URL.RawQuery = http.MethodHead, http.NoBody, ""
	answer := httptest.NewRecorder()
	fake.ServeHTTP(answer, ask)
	return answer.Code == http.StatusOK, `"` + strings.Trim(answer.Header().Get("ETag"), `"`) + `"`
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write([]byte("<Error><Code>" + code + "</Code></Error>"))
}
