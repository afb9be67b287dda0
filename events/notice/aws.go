package notice

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// spotWindow is the lead time of a spot interruption. EventBridge's event carries no deadline.
// Source: Amazon EC2 User Guide, "Spot Instance interruption notices".
const spotWindow = 2 * time.Minute

// timed is a notice and when it was given out.
type timed struct {
	events.Notice
	at time.Time
}

// envelope is EventBridge's. resources is not read: its ARNs carry a zone in place of the region.
type envelope struct {
	ID     string          `json:"id"`
	Time   time.Time       `json:"time"`
	Detail json.RawMessage `json:"detail"`
}

// eventBridgeKinds maps detail-type to its parser.
var eventBridgeKinds = map[string]func(envelope) ([]events.Notice, error){
	"EC2 Spot Instance Interruption Warning": spotWarning,
	"EC2 Instance Rebalance Recommendation":  rebalance,
	"EC2 Instance State-change Notification": stateChange,
}

func parseEventBridge(raw []byte, at time.Time) ([]timed, error) {
	var kind struct {
		DetailType string `json:"detail-type"`
		Source     string `json:"source"`
	}
	if !json.Valid(raw) {
		return nil, fmt.Errorf("%w: no JSON document", ErrMalformed)
	}
	_ = json.Unmarshal(raw, &kind) // JSON of another shape leaves it empty
	parse := eventBridgeKinds[kind.DetailType]
	if parse == nil || kind.Source != "aws.ec2" {
		return nil, nil
	}
	var e envelope
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrMalformed, kind.DetailType, err)
	}
	if e.Time.IsZero() {
		e.Time = at
	}
	notices, err := parse(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrMalformed, kind.DetailType, err)
	}
	out := make([]timed, len(notices))
	for i, n := range notices {
		n.NativeID = e.ID
		out[i] = timed{Notice: n, at: e.Time}
	}
	return out, nil
}

// instanceID keeps out what could be mistaken for a path in the store. Source: Amazon EC2 User Guide,
// "Resource IDs": i- and 8 or 17 hexadecimal digits; stand-ins use other letters.
var instanceID = regexp.MustCompile(`^i-[0-9A-Za-z]+$`)

// instance decodes detail and requires an instance id.
func instance[T any](e envelope, id func(T) string) (T, events.Notice, error) {
	var detail T
	if err := json.Unmarshal(e.Detail, &detail); err != nil {
		return detail, events.Notice{}, fmt.Errorf("detail: %w", err)
	}
	n := events.Notice{Provider: "aws", Instance: id(detail)}
	if !instanceID.MatchString(n.Instance) {
		return detail, n, fmt.Errorf("detail.instance-id %q is no instance id", n.Instance)
	}
	return detail, n, nil
}

func spotWarning(e envelope) ([]events.Notice, error) {
	type detail struct {
		ID     string `json:"instance-id"`
		Action string `json:"instance-action"`
	}
	d, n, err := instance(e, func(d detail) string { return d.ID })
	if err != nil {
		return nil, err
	}
	return spotAction(n, d.Action, e.Time.Add(spotWindow), e.Time)
}

// spotAction fills in what an interruption does. Hibernation begins at once.
func spotAction(n events.Notice, action string, deadline, at time.Time) ([]events.Notice, error) {
	switch action {
	case "terminate":
		n.Kind = events.KindPreempt
	case "stop":
		n.Kind = events.KindStop
	case "hibernate":
		n.Kind, deadline = events.KindHibernate, at
	default:
		return nil, fmt.Errorf("instance-action %q is unknown", action)
	}
	deadline = deadline.UTC()
	n.Deadline = &deadline
	return []events.Notice{n}, nil
}

func rebalance(e envelope) ([]events.Notice, error) {
	type detail struct {
		ID string `json:"instance-id"`
	}
	_, n, err := instance(e, func(d detail) string { return d.ID })
	n.Kind = events.KindRebalance
	return []events.Notice{n}, err
}

// stateChange says that a machine is gone; the other states say nothing that matters here.
func stateChange(e envelope) ([]events.Notice, error) {
	type detail struct {
		ID    string `json:"instance-id"`
		State string `json:"state"`
	}
	d, n, err := instance(e, func(d detail) string { return d.ID })
	if err != nil {
		return nil, err
	}
	switch d.State {
	case "stopped", "terminated":
		n.Kind = events.KindGone
		return []events.Notice{n}, nil
	case "pending", "running", "stopping", "shutting-down":
		return nil, nil
	}
	return nil, fmt.Errorf("state %q is unknown", d.State)
}

// Paths below /latest/meta-data that FromIMDS reads.
const (
	IMDSSpotAction = "spot/instance-action"
	IMDSRebalance  = "events/recommendations/rebalance"
)

// FromIMDS reads the body of one path of the instance metadata service of node. ErrMalformed.
func FromIMDS(path string, body []byte, node events.Node, at time.Time) (events.Notice, error) {
	n := events.Notice{Provider: node.Provider, Instance: node.Instance}
	var doc struct {
		Action     string    `json:"action"`
		Time       time.Time `json:"time"`
		NoticeTime time.Time `json:"noticeTime"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return n, fmt.Errorf("%w: %s: %w", ErrMalformed, path, err)
	}
	switch path {
	case IMDSRebalance:
		if doc.NoticeTime.IsZero() {
			return n, fmt.Errorf("%w: %s: noticeTime is missing", ErrMalformed, path)
		}
		n.Kind = events.KindRebalance
		return n, nil
	case IMDSSpotAction:
		if doc.Time.IsZero() {
			return n, fmt.Errorf("%w: %s: time is missing", ErrMalformed, path)
		}
		found, err := spotAction(n, doc.Action, doc.Time, at)
		if err != nil {
			return n, fmt.Errorf("%w: %s: %w", ErrMalformed, path, err)
		}
		return found[0], nil
	}
	return n, fmt.Errorf("%w: path %q is not one that is read", ErrMalformed, path)
}
