package supervise

import "time"

// WatchByPolling is WatchDir where inotify does not work; it looks whenever tick says so.
func WatchByPolling(dir string, tick <-chan time.Time) (*Watcher, error) {
	before, err := look(dir)
	if err != nil {
		return nil, err
	}
	w := &Watcher{events: make(chan Change, watchBuffer), quit: make(chan struct{}), why: "test"}
	w.worker.Go(func() { w.poll(dir, before, tick) })
	return w, nil
}
