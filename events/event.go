// Package events says what happened: the types, ids and data of every CloudEvent that Reprieve
// reads or writes. It does no I/O and reads no clock. What to do about an event is decided in
// handlers; how native cloud payloads become events is in events/notice.
package events

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Event is the envelope: CloudEvents 1.0, as the CloudEvents SDK models it.
type Event = event.Event

// New returns a CloudEvent of type typ about subject, with data as its JSON body.
// source is a URI reference, such as /reprieve/jobs. The error wraps nothing: data that does not
// marshal is a programming error.
func New(typ, source, subject, id string, at time.Time, data any) (Event, error) {
	e := event.New()
	e.SetType(typ)
	e.SetSource(source)
	e.SetSubject(subject)
	e.SetID(id)
	e.SetTime(at.UTC())
	if err := e.SetData(event.ApplicationJSON, data); err != nil {
		return Event{}, fmt.Errorf("encode data of %s: %w", typ, err)
	}
	if err := e.Validate(); err != nil {
		return Event{}, fmt.Errorf("build %s: %w", typ, err)
	}
	return e, nil
}

// Decode reads the data of e, whose type must be one of those listed for T in Types.
// The error names the event and what is wrong with it.
func Decode[T any](e Event) (T, error) {
	var data T
	if err := json.Unmarshal(e.Data(), &data); err != nil {
		return data, fmt.Errorf("data of event %s (%s): %w", e.ID(), e.Type(), err)
	}
	return data, nil
}

// Source is the CloudEvents source of everything that Reprieve itself says about jobs.
const Source = "/reprieve/jobs"

// JobEventID is the id of the event of type typ that transition number seq of a job made.
// Two processes that make the same transition publish one event to every deduplicating bus.
func JobEventID(uid, job string, seq int, typ string) string {
	return hash(uid, job, strconv.Itoa(seq), typ)
}

// NoticeID is the bus id of a notice: instance, kind and the deadline rounded to the minute.
// Copies of one notice (metadata service, EventBridge) mostly share it; handlers compare with
// SameNotice, which also catches the copies that fall on both sides of a minute.
func NoticeID(n Notice) string {
	minute := ""
	if n.Deadline != nil {
		minute = n.Deadline.UTC().Round(time.Minute).Format(time.RFC3339)
	}
	return hash(n.Provider, n.Instance, string(n.Kind), minute, strconv.FormatBool(n.Cancelled))
}

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}
