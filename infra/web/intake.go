package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	maxBody        = 1 << 20 // bytes
	publishTimeout = 10 * time.Second
)

// refusal is an error with its HTTP status.
type refusal struct {
	status   int
	sentence string
}

func (r *refusal) Error() string { return r.sentence }

func bad(format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// postEvents takes CloudEvents; all of a batch or none.
func (s *server) postEvents(w http.ResponseWriter, r *http.Request) {
	body, refused := readBody(w, r)
	if refused == nil {
		var evs []events.Event
		if evs, refused = decode(r.Header, body); refused == nil {
			refused = s.publish(w, r, evs)
		}
	}
	if refused != nil {
		refuse(w, refused.status, refused.sentence)
	}
}

// postNotice takes what a cloud sends.
func (s *server) postNotice(source string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, refused := readBody(w, r)
		if refused == nil {
			refused = noticeType(r.Header)
		}
		if refused == nil {
			evs, err := s.ParseNotice(source, body)
			if err != nil && !errors.Is(err, handlers.ErrIgnored) {
				refused = bad("the %s notice cannot be read: %v", source, err)
			} else {
				refused = s.publish(w, r, evs)
			}
		}
		if refused != nil {
			refuse(w, refused.status, refused.sentence)
		}
	}
}

// noticeType refuses what is neither JSON nor the text/plain of Amazon SNS.
func noticeType(h http.Header) *refusal {
	contentType := h.Get("Content-Type")
	media, _, err := mime.ParseMediaType(contentType)
	if contentType == "" || err == nil && (isJSON(media) || media == "text/plain") {
		return nil
	}
	return &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("the content type %.100q is not supported; send application/json", contentType)}
}

func isJSON(media string) bool {
	return media == event.ApplicationJSON || media == event.TextJSON || strings.HasSuffix(media, "+json")
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *refusal) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return nil, &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("the content encoding %.100q is not supported; send the body as it is", coding)}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes; send smaller batches", maxBody)}
	case err != nil:
		return nil, bad("the body ended early: %v", err)
	}
	return body, nil
}

// publish publishes evs and answers with their ids.
func (s *server) publish(w http.ResponseWriter, r *http.Request, evs []events.Event) *refusal {
	ctx, cancel := context.WithTimeout(r.Context(), publishTimeout)
	defer cancel()
	ids := make([]string, len(evs))
	for i, e := range evs {
		ids[i] = e.ID()
	}
	if len(evs) > 0 {
		err := s.Publish(ctx, evs...)
		if errors.Is(err, handlers.ErrInvalid) {
			return bad("the bus refuses it: %v", err)
		}
		if err != nil {
			s.Log.Error("cannot publish", "events", ids, "error", err)
			w.Header().Set("Retry-After", "1")
			return &refusal{http.StatusServiceUnavailable, "the bus is not available; send it again (events with the same id count once)"}
		}
	}
	answer(w, http.StatusAccepted, map[string][]string{"ids": ids})
	return nil
}

// decode reads the CloudEvents of a request in any of the HTTP binding's three modes, and checks
// each of them.
func decode(h http.Header, body []byte) ([]events.Event, *refusal) {
	message := cehttp.NewMessage(h, io.NopCloser(bytes.NewReader(body)))
	mode := message.ReadEncoding()
	switch mode {
	case binding.EncodingStructured, binding.EncodingBatch:
		if !json.Valid(body) {
			return nil, bad("the body is not JSON")
		}
	case binding.EncodingBinary:
	default:
		return nil, &refusal{http.StatusUnsupportedMediaType, "no CloudEvent was sent; use the content type application/cloudevents+json or application/cloudevents-batch+json, or the ce- headers"}
	}
	evs, err := read(message, mode, body)
	if err != nil {
		return nil, bad("not a CloudEvent: %s", oneLine(err))
	}
	for i, e := range evs {
		if err := check(e); err != nil {
			return nil, bad("event %d of %d (id %.100q): %s", i+1, len(evs), idOf(e), oneLine(err))
		}
	}
	return evs, nil
}

// read turns the panics of the SDK's decoder (a data_base64 that is no string) into errors.
func read(message *cehttp.Message, mode binding.Encoding, body []byte) (evs []events.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	if mode == binding.EncodingBatch {
		return binding.ToEvents(context.Background(), message, bytes.NewReader(body))
	}
	e, err := binding.ToEvent(context.Background(), message)
	if err != nil {
		return nil, err
	}
	return []events.Event{*e}, nil
}

// check accepts valid CloudEvents 1.0 of our types whose data is exactly what the type says.
func check(e events.Event) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if e.SpecVersion() != event.CloudEventsVersionV1 {
		return fmt.Errorf("specversion is %q; send 1.0", e.SpecVersion())
	}
	zero, ok := events.Types[e.Type()]
	if !ok {
		return fmt.Errorf("type %.100q is unknown; those of Reprieve begin with dev.reprieve", e.Type())
	}
	if e.DataContentType() != "" && !isJSON(e.DataMediaType()) {
		return fmt.Errorf("datacontenttype is %.100q; send application/json", e.DataContentType())
	}
	data := bytes.TrimSpace(e.Data())
	if len(data) == 0 || data[0] != '{' {
		return errors.New("data has to be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(reflect.New(reflect.TypeOf(zero)).Interface()); err != nil {
		return fmt.Errorf("data of %s: %w", e.Type(), err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("data has to be one JSON object")
	}
	return nil
}

// idOf is e.ID() of any event, also one without a context.
func idOf(e events.Event) string {
	if e.Context == nil {
		return ""
	}
	return e.ID()
}

// oneLine is the SDK's list of complaints as part of a sentence.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
