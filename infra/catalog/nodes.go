package catalog

import (
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// nodeNotices is how many notices a machine's document keeps.
const nodeNotices = 32

// noticeSlack is how long after its deadline a stop notice still counts as open: the machine may be late.
const noticeSlack = 2 * time.Minute

// nodeDoc is nodes/<provider>/<instance>.json.
type nodeDoc struct {
	Jobs    []string        `json:"jobs"`
	Notices []events.Notice `json:"notices,omitempty"`
}

func nodeKey(n events.Node) string {
	return "nodes/" + url.PathEscape(n.Provider) + "/" + url.PathEscape(n.Instance) + ".json"
}

// Jobs implements handlers.Nodes.
func (c *Catalog) Jobs(ctx context.Context, node events.Node) ([]string, error) {
	var doc nodeDoc
	if _, err := readDoc(ctx, c.Store, nodeKey(node), &doc); err != nil {
		return nil, err
	}
	return doc.Jobs, nil
}

// Note implements handlers.Nodes.
func (c *Catalog) Note(ctx context.Context, n events.Notice) error {
	return updateDoc(ctx, c.Store, nodeKey(n.Node()), func(doc *nodeDoc) bool {
		if slices.ContainsFunc(doc.Notices, func(have events.Notice) bool {
			return have.Cancelled == n.Cancelled && events.SameNotice(have, n)
		}) {
			return false
		}
		doc.Notices = append(doc.Notices, n)
		doc.Notices = doc.Notices[max(0, len(doc.Notices)-nodeNotices):]
		return true
	})
}

// Register says that job may have an attempt on node, so that notices find it. Idempotent.
func (c *Catalog) Register(ctx context.Context, node events.Node, job string) error {
	return updateDoc(ctx, c.Store, nodeKey(node), func(doc *nodeDoc) bool {
		if slices.Contains(doc.Jobs, job) {
			return false
		}
		doc.Jobs = append(doc.Jobs, job)
		return true
	})
}

// Unregister takes Register back. Idempotent.
func (c *Catalog) Unregister(ctx context.Context, node events.Node, job string) error {
	return updateDoc(ctx, c.Store, nodeKey(node), func(doc *nodeDoc) bool {
		at := slices.Index(doc.Jobs, job)
		if at < 0 {
			return false
		}
		doc.Jobs = slices.Delete(doc.Jobs, at, at+1)
		return true
	})
}

// OpenStop returns the stop notice that node is under, if there is one: not cancelled, and its
// deadline not long past.
func (c *Catalog) OpenStop(ctx context.Context, node events.Node) (*events.Notice, error) {
	var doc nodeDoc
	if _, err := readDoc(ctx, c.Store, nodeKey(node), &doc); err != nil {
		return nil, err
	}
	for _, n := range slices.Backward(doc.Notices) {
		if n.Cancelled || n.Kind.Effect() != events.EffectStop || n.Deadline == nil || c.Now().After(n.Deadline.Add(noticeSlack)) {
			continue
		}
		cancelled := slices.ContainsFunc(doc.Notices, func(have events.Notice) bool { return have.Cancelled && events.SameNotice(have, n) })
		if !cancelled {
			return &n, nil
		}
	}
	return nil, nil
}
