package notice_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
)

var received = time.Date(2026, 3, 1, 12, 0, 5, 0, time.UTC)

func at(s string) *time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return &t
}

// eventBridge is an event as EventBridge delivers it, zone in the ARN included.
func eventBridge(detailType, detail string) string {
	return `{"version":"0","id":"7bf73129-1428-4cd3-a780-95db273d1602","detail-type":"` + detailType + `","source":"aws.ec2",` +
		`"account":"123456789012","time":"2026-03-01T12:00:00Z","region":"us-east-1",` +
		`"resources":["arn:aws:ec2:us-east-1a:instance/i-0b662ef9931388ba0"],"detail":` + detail + `}`
}

const (
	warning     = "EC2 Spot Instance Interruption Warning"
	advice      = "EC2 Instance Rebalance Recommendation"
	stateChange = "EC2 Instance State-change Notification"
	nativeID    = "7bf73129-1428-4cd3-a780-95db273d1602"
)

func TestParseAWS(t *testing.T) {
	of := func(kind events.Kind, deadline *time.Time) []events.Notice {
		return []events.Notice{{Provider: "aws", Instance: "i-0b662ef9931388ba0", Kind: kind, Deadline: deadline, NativeID: nativeID}}
	}
	for name, c := range map[string]struct {
		raw  string
		want []events.Notice
	}{
		"terminate":      {eventBridge(warning, `{"instance-id":"i-0b662ef9931388ba0","instance-action":"terminate"}`), of(events.KindPreempt, at("2026-03-01T12:02:00Z"))},
		"stop":           {eventBridge(warning, `{"instance-id":"i-0b662ef9931388ba0","instance-action":"stop"}`), of(events.KindStop, at("2026-03-01T12:02:00Z"))},
		"hibernate":      {eventBridge(warning, `{"instance-id":"i-0b662ef9931388ba0","instance-action":"hibernate"}`), of(events.KindHibernate, at("2026-03-01T12:00:00Z"))},
		"rebalance":      {eventBridge(advice, `{"instance-id":"i-0b662ef9931388ba0"}`), of(events.KindRebalance, nil)},
		"stopped":        {eventBridge(stateChange, `{"instance-id":"i-0b662ef9931388ba0","state":"stopped"}`), of(events.KindGone, nil)},
		"terminated":     {eventBridge(stateChange, `{"instance-id":"i-0b662ef9931388ba0","state":"terminated"}`), of(events.KindGone, nil)},
		"running":        {eventBridge(stateChange, `{"instance-id":"i-0b662ef9931388ba0","state":"running"}`), nil},
		"shutting down":  {eventBridge(stateChange, `{"instance-id":"i-0b662ef9931388ba0","state":"shutting-down"}`), nil},
		"new fields":     {eventBridge(advice, `{"instance-id":"i-0b662ef9931388ba0","confidence":[1]}`), of(events.KindRebalance, nil)},
		"resources text": {strings.NewReplacer("[\"arn", "\"arn", "ba0\"]", "ba0\"").Replace(eventBridge(advice, `{"instance-id":"i-0b662ef9931388ba0"}`)), of(events.KindRebalance, nil)},
		"no time":        {`{"detail-type":"` + warning + `","source":"aws.ec2","detail":{"instance-id":"i-1a","instance-action":"stop"}}`, []events.Notice{{Provider: "aws", Instance: "i-1a", Kind: events.KindStop, Deadline: at("2026-03-01T12:02:05Z")}}},

		"another kind":          {eventBridge("EBS Volume Notification", `{"event":"createVolume"}`), nil},
		"another kind, no time": {`{"detail-type":"EC2 Fleet Error","source":"aws.ec2","time":5,"detail":[]}`, nil},
		"another source":        {strings.Replace(eventBridge(warning, `{}`), "aws.ec2", "my.app", 1), nil},
		"another shape":         {`[{"eventType":"Microsoft.MachineLearningServices.RunStatusChanged"}]`, nil},
		"empty object":          {`{}`, nil},
		"null":                  {`null`, nil},
		"number":                {`17`, nil},
	} {
		for _, source := range []string{"aws", "auto"} {
			t.Run(name+"/"+source, func(t *testing.T) {
				evs, err := notice.Parse(source, []byte(c.raw), received)
				if err != nil {
					t.Fatal(err)
				}
				var got []events.Notice
				for _, e := range evs {
					n, err := events.Decode[events.Notice](e)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, n)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		}
	}
}

func TestParseMalformed(t *testing.T) {
	for name, c := range map[string]struct{ source, raw, says string }{
		"nothing":           {"aws", "", "no JSON document"},
		"cut off":           {"aws", eventBridge(warning, `{"instance-id":"i-0b662ef99`), "no JSON document"},
		"two documents":     {"aws", "{}{}", "no JSON document"},
		"no detail":         {"aws", `{"detail-type":"` + advice + `","source":"aws.ec2"}`, "detail"},
		"detail is a list":  {"aws", eventBridge(advice, `[]`), "detail"},
		"no instance":       {"aws", eventBridge(advice, `{}`), "instance-id"},
		"instance a path":   {"aws", eventBridge(advice, `{"instance-id":"i-1/../../jobs"}`), "instance-id"},
		"no action":         {"aws", eventBridge(warning, `{"instance-id":"i-1"}`), "instance-action"},
		"unknown action":    {"aws", eventBridge(warning, `{"instance-id":"i-1","instance-action":"melt"}`), `"melt"`},
		"unknown state":     {"aws", eventBridge(stateChange, `{"instance-id":"i-1","state":"molten"}`), `"molten"`},
		"time is no time":   {"aws", strings.Replace(eventBridge(advice, `{"instance-id":"i-1"}`), "2026-03-01T12:00:00Z", "yesterday", 1), "yesterday"},
		"year 10000":        {"aws", strings.Replace(eventBridge(warning, `{"instance-id":"i-1","instance-action":"stop"}`), "2026-03-01T12:00:00Z", "9999-12-31T23:59:59Z", 1), "year"},
		"source of later":   {"gcp", `{}`, `"gcp"`},
		"source misspelled": {"amazon", `{}`, `"amazon"`},
	} {
		t.Run(name, func(t *testing.T) {
			evs, err := notice.Parse(c.source, []byte(c.raw), received)
			if !errors.Is(err, notice.ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %q, want it to say %q", err, c.says)
			}
			if len(evs) > 0 {
				t.Errorf("got events beside the error: %v", evs)
			}
		})
	}
}

func TestEvent(t *testing.T) {
	n := events.Notice{Provider: "aws", Instance: "i-1", Kind: events.KindPreempt, Deadline: at("2026-03-01T12:02:00Z")}
	e, err := notice.Event(n, received)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{e.Type(), e.Source(), e.Subject(), e.ID(), e.Time().Format(time.RFC3339)}
	want := []string{events.TypeNodeNotice, "/aws", "aws/i-1", events.NoticeID(n), "2026-03-01T12:00:05Z"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	n.Cancelled = true
	withdrawn, err := notice.Event(n, received)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := withdrawn.Type(), events.TypeNodeNoticeCancelled; got != want {
		t.Errorf("type: got %s, want %s", got, want)
	}
	if withdrawn.ID() == e.ID() {
		t.Error("a notice and its cancellation have one id: the bus would drop the second")
	}
}

// The metadata service's and EventBridge's copies of one interruption are one event on the bus.
func TestCopiesShareTheirID(t *testing.T) {
	evs, err := notice.Parse("aws", []byte(eventBridge(warning, `{"instance-id":"i-1","instance-action":"terminate"}`)), received)
	if err != nil || len(evs) != 1 {
		t.Fatal(evs, err)
	}
	local, err := notice.FromIMDS(notice.IMDSSpotAction, []byte(`{"action":"terminate","time":"2026-03-01T12:02:07Z"}`),
		events.Node{Provider: "aws", Instance: "i-1"}, received)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := events.NoticeID(local), evs[0].ID(); got != want {
		t.Errorf("id: got %s from the metadata service, want %s as from EventBridge", got, want)
	}
}

func TestFromIMDS(t *testing.T) {
	node := events.Node{Provider: "aws", Instance: "i-1"}
	of := func(kind events.Kind, deadline *time.Time) events.Notice {
		return events.Notice{Provider: "aws", Instance: "i-1", Kind: kind, Deadline: deadline}
	}
	for name, c := range map[string]struct {
		path, body string
		want       events.Notice
	}{
		"terminate": {notice.IMDSSpotAction, `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`, of(events.KindPreempt, at("2017-09-18T08:22:00Z"))},
		"stop":      {notice.IMDSSpotAction, `{"action": "stop", "time": "2017-09-18T08:22:00Z"}` + "\n", of(events.KindStop, at("2017-09-18T08:22:00Z"))},
		"hibernate": {notice.IMDSSpotAction, `{"action":"hibernate","time":"2017-09-18T08:22:00Z"}`, of(events.KindHibernate, &received)},
		"zone":      {notice.IMDSSpotAction, `{"action":"terminate","time":"2017-09-18T10:22:00+02:00"}`, of(events.KindPreempt, at("2017-09-18T08:22:00Z"))},
		"rebalance": {notice.IMDSRebalance, `{"noticeTime":"2020-10-27T08:22:00Z"}`, of(events.KindRebalance, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := notice.FromIMDS(c.path, []byte(c.body), node, received)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	for name, c := range map[string]struct{ path, body string }{
		"nothing":        {notice.IMDSSpotAction, ``},
		"a page":         {notice.IMDSSpotAction, `<html>login</html>`},
		"no time":        {notice.IMDSSpotAction, `{"action":"stop"}`},
		"no action":      {notice.IMDSSpotAction, `{"time":"2017-09-18T08:22:00Z"}`},
		"unknown action": {notice.IMDSSpotAction, `{"action":"melt","time":"2017-09-18T08:22:00Z"}`},
		"no notice time": {notice.IMDSRebalance, `{}`},
		"null":           {notice.IMDSRebalance, `null`},
		"another path":   {"instance-id", `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := notice.FromIMDS(c.path, []byte(c.body), node, received); !errors.Is(err, notice.ErrMalformed) {
				t.Errorf("got %+v, %v, want ErrMalformed", got, err)
			}
		})
	}
}

// FuzzParse: whatever arrives is nothing, malformed, or a valid event that says what it was made from.
func FuzzParse(f *testing.F) {
	f.Add([]byte(eventBridge(warning, `{"instance-id":"i-0b662ef9931388ba0","instance-action":"terminate"}`)))
	f.Add([]byte(eventBridge(advice, `{"instance-id":"i-0b662ef9931388ba0"}`)))
	f.Add([]byte(eventBridge(stateChange, `{"instance-id":"i-0b662ef9931388ba0","state":"stopped"}`)))
	f.Add([]byte(`{"detail-type":null,"source":"aws.ec2"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		evs, err := notice.Parse("auto", raw, received)
		if err != nil && !errors.Is(err, notice.ErrMalformed) {
			t.Fatalf("got %v, want ErrMalformed", err)
		}
		for _, e := range evs {
			if err := e.Validate(); err != nil {
				t.Fatal(err)
			}
			n, err := events.Decode[events.Notice](e)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := e.ID(), events.NoticeID(n); got != want {
				t.Errorf("id: got %s, want %s", got, want)
			}
			if n.Kind.Effect() == events.EffectNone || strings.ContainsAny(n.Instance, "/. \x00") {
				t.Errorf("got %+v", n)
			}
		}
	})
}

// FuzzFromIMDS: a body is malformed or a notice of the machine that was asked.
func FuzzFromIMDS(f *testing.F) {
	f.Add(notice.IMDSSpotAction, []byte(`{"action":"terminate","time":"2017-09-18T08:22:00Z"}`))
	f.Add(notice.IMDSRebalance, []byte(`{"noticeTime":"2020-10-27T08:22:00Z"}`))
	node := events.Node{Provider: "aws", Instance: "i-1"}
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		n, err := notice.FromIMDS(path, body, node, received)
		if err != nil && !errors.Is(err, notice.ErrMalformed) {
			t.Fatalf("got %v, want ErrMalformed", err)
		}
		if err == nil && (n.Node() != node || n.Kind.Effect() == events.EffectNone) {
			t.Errorf("got %+v", n)
		}
	})
}
