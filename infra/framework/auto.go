package framework

import (
	"os"
	"sync/atomic"
)

// auto takes what looks like a torch file for one, and the rest for generic. Files of the generic
// kind without a number in their name (a tracker, a configuration, a log) count only if there is
// nothing of torch's.
type auto struct {
	torch *torch
	chose *atomic.Value // string
}

func newAuto() auto {
	a := auto{newTorch(), new(atomic.Value)}
	a.chose.Store("auto")
	return a
}

func (a auto) Name() string { return a.chose.Load().(string) }

func (a auto) Scan(dir string, ev Evidence) ([]Unit, error) {
	kind := map[string]string{}
	found, err := scan(dir, ev, func(root *os.Root, e *entry) bool {
		if a.torch.judge(root, e) {
			kind[e.Name] = a.torch.Name()
			return true
		}
		return generic{}.judge(root, e, ev)
	})
	if err != nil {
		return nil, err
	}
	units := found[:0]
	for _, u := range found {
		if u.Step >= 0 || len(kind) == 0 || kind[u.Name] != "" {
			units = append(units, u)
		}
	}
	if len(units) > 0 {
		chosen := kind[units[len(units)-1].Name]
		if chosen == "" {
			chosen = generic{}.Name()
		}
		a.chose.Store(chosen)
	}
	return units, nil
}
