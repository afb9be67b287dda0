package events_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/events"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestNewAndDecode(t *testing.T) {
	want := events.Job{Job: "j", UID: "u", Attempt: 2, Seq: 7, State: "running", Node: &events.Node{Provider: "aws", Instance: "i-1"}}
	e, err := events.New(events.TypeJobStarted, events.Source, "j", "id-1", noon.In(time.FixedZone("CET", 3600)), want)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(wire, &doc); err != nil {
		t.Fatal(err)
	}
	delete(doc, "data")
	envelope := map[string]any{
		"specversion": "1.0", "type": "dev.reprieve.job.started", "source": "/reprieve/jobs", "subject": "j",
		"id": "id-1", "time": "2026-03-01T12:00:00Z", "datacontenttype": "application/json",
	}
	if diff := cmp.Diff(envelope, doc); diff != "" {
		t.Errorf("envelope (-want +got)\n%s", diff)
	}
	var back events.Event
	if err := json.Unmarshal(wire, &back); err != nil {
		t.Fatal(err)
	}
	got, err := events.Decode[events.Job](back)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("data (-want +got)\n%s", diff)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		typ, source, id string
		data            any
		says            string
	}{
		"no id":     {events.TypeJobStarted, events.Source, "", events.Job{}, "id"},
		"no source": {events.TypeJobStarted, "", "1", events.Job{}, "source"},
		"no type":   {"", events.Source, "1", events.Job{}, "type"},
		"no JSON":   {events.TypeJobStarted, events.Source, "1", func() {}, "encode data of dev.reprieve.job.started"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := events.New(c.typ, c.source, "s", c.id, noon, c.data); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
}

func TestDecodeNamesTheEvent(t *testing.T) {
	e, err := events.New(events.TypeJobStarted, events.Source, "j", "id-1", noon, map[string]any{"attempt": "two"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = events.Decode[events.Job](e)
	for _, want := range []string{"id-1", events.TypeJobStarted, "attempt"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to name %s", err, want)
		}
	}
}

// An id is a function of its parts, and of each of them; parts do not run into each other.
func TestJobEventID(t *testing.T) {
	base := events.JobEventID("u", "j", 1, "t")
	if got := events.JobEventID("u", "j", 1, "t"); got != base {
		t.Errorf("got %s the second time, %s the first", got, base)
	}
	for name, other := range map[string]string{
		"uid":      events.JobEventID("v", "j", 1, "t"),
		"job":      events.JobEventID("u", "k", 1, "t"),
		"seq":      events.JobEventID("u", "j", 2, "t"),
		"type":     events.JobEventID("u", "j", 1, "s"),
		"boundary": events.JobEventID("uj", "", 1, "t"),
		"digits":   events.JobEventID("u", "j1", 1, "t"),
	} {
		if other == base {
			t.Errorf("another %s, the same id", name)
		}
	}
}

// sample draws notices from a small space, so that pairs are often equal or nearly so.
func sample(r *rand.Rand) events.Notice {
	n := events.Notice{
		Provider:  []string{"aws", "gcp"}[r.IntN(2)],
		Instance:  []string{"i-1", "i-2"}[r.IntN(2)],
		Kind:      events.Kinds[r.IntN(2)],
		NativeID:  []string{"", "a", "b"}[r.IntN(3)],
		Zone:      []string{"", "a"}[r.IntN(2)],
		Cancelled: r.IntN(4) == 0,
	}
	if r.IntN(4) > 0 {
		at := noon.Add(time.Duration(r.IntN(400)) * time.Second)
		if r.IntN(2) == 0 {
			at = at.In(time.FixedZone("CET", 3600))
		}
		n.Deadline = &at
	}
	return n
}

func TestNoticeIdentity(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	same := 0
	for range 100_000 {
		a, b := sample(r), sample(r)
		if !events.SameNotice(a, a) {
			t.Fatalf("not the same as itself: %+v", a)
		}
		got := events.SameNotice(a, b)
		if got != events.SameNotice(b, a) {
			t.Fatalf("not symmetric: %+v, %+v", a, b)
		}
		want := a.Provider == b.Provider && a.Instance == b.Instance && a.Kind == b.Kind && (a.Deadline == nil) == (b.Deadline == nil)
		if want && a.Deadline != nil {
			apart := a.Deadline.Sub(*b.Deadline)
			want = -90*time.Second <= apart && apart <= 90*time.Second
		}
		if got != want {
			t.Fatalf("got %t, want %t: %+v, %+v", got, want, a, b)
		}
		if got {
			same++
		}
		// An id on the bus never hides what is another notice, or a cancellation.
		if events.NoticeID(a) == events.NoticeID(b) && (!got || a.Cancelled != b.Cancelled) {
			t.Fatalf("one id for two notices: %+v, %+v", a, b)
		}
		// What is not part of the identity does not change the id.
		c := a
		c.NativeID, c.Zone = b.NativeID, b.Zone
		if c.Deadline != nil {
			utc := c.Deadline.UTC()
			c.Deadline = &utc
		}
		if events.NoticeID(a) != events.NoticeID(c) {
			t.Fatalf("two ids for one notice: %+v, %+v", a, c)
		}
	}
	if same < 1000 {
		t.Errorf("only %d pairs were the same: the sample says little", same)
	}
}

func TestNoticeIDDoesNotChangeBetweenVersions(t *testing.T) {
	got := events.NoticeID(events.Notice{Provider: "aws", Instance: "i-1", Kind: events.KindPreempt, Deadline: &noon})
	if want := "8138c2440e1cb189360e22eda66af66a"; got != want {
		t.Errorf("got %s, want %s: two versions on one bus would handle a notice twice", got, want)
	}
}
