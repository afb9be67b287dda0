package bus

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	maxEvent = 512 << 10 // bytes of one encoded event
	maxID    = 256       // bytes of an event id
)

// Encode returns e as a structured-mode JSON CloudEvent, which is what every adapter carries.
// ErrInvalid: not CloudEvents 1.0, a type that is no bus subject, an id of more than 256 bytes or
// with control characters, more than 512 KiB.
func Encode(e events.Event) ([]byte, error) {
	if err := valid(e); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("%w: encode event %s: %w", handlers.ErrInvalid, e.ID(), err)
	}
	if len(raw) > maxEvent {
		return nil, fmt.Errorf("%w: event %s has %d bytes, the limit is %d", handlers.ErrInvalid, e.ID(), len(raw), maxEvent)
	}
	return raw, nil
}

// Decode reads a structured-mode JSON CloudEvent. ErrInvalid as for Encode, but of any size.
func Decode(raw []byte) (events.Event, error) {
	e, err := unmarshal(raw)
	if err != nil {
		return events.Event{}, fmt.Errorf("%w: not a JSON CloudEvent: %s", handlers.ErrInvalid, oneLine(err))
	}
	if err := valid(e); err != nil {
		return events.Event{}, err
	}
	return e, nil
}

// unmarshal turns the panics of the SDK's decoder (a data_base64 that is no string) into errors.
func unmarshal(raw []byte) (e events.Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return e, json.Unmarshal(raw, &e)
}

func valid(e events.Event) error {
	switch err := e.Validate(); {
	case err != nil:
		return fmt.Errorf("%w: not a valid CloudEvent: %s", handlers.ErrInvalid, oneLine(err))
	case e.SpecVersion() != event.CloudEventsVersionV1:
		return fmt.Errorf("%w: event %q: specversion is %q; send 1.0", handlers.ErrInvalid, e.ID(), e.SpecVersion())
	case len(e.ID()) > maxID || strings.ContainsFunc(e.ID(), unicode.IsControl):
		return fmt.Errorf("%w: event id %.40q...: use at most %d bytes without control characters", handlers.ErrInvalid, e.ID(), maxID)
	case !typeForm.MatchString(e.Type()):
		return fmt.Errorf("%w: event %q: type %q: use words of letters, digits, - and _ with dots between them", handlers.ErrInvalid, e.ID(), e.Type())
	}
	return nil
}

// oneLine is the SDK's list of complaints as part of a sentence.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// checkData returns an ErrInvalid unless the data of e is what events.Types says for its type.
// Fields that this version does not know are no error: a newer one may have published e.
func checkData(e events.Event) error {
	zero, ok := events.Types[e.Type()]
	if !ok {
		return fmt.Errorf("%w: event %s has the unknown type %q", handlers.ErrInvalid, e.ID(), e.Type())
	}
	if err := json.Unmarshal(e.Data(), reflect.New(reflect.TypeOf(zero)).Interface()); err != nil {
		return fmt.Errorf("%w: data of event %s (%s): %w", handlers.ErrInvalid, e.ID(), e.Type(), err)
	}
	return nil
}
