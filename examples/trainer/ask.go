package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const (
	postWithin    = time.Second     // one message to the supervisor
	deliverWithin = 3 * time.Second // all that are left when the training ends
)

// supervisor hears when a checkpoint is wanted, by signals and from `reprieve run` over
// REPRIEVE_SOCKET, and tells the latter how the training goes. Nothing that fails here disturbs the
// training: messages are sent in the background, and dropped if nobody takes them.
type supervisor struct {
	client  *http.Client // nil: there is no socket
	signals chan os.Signal
	wanted  chan bool // a checkpoint is wanted now; true: and then stop
	posts   chan post
	cancel  context.CancelFunc
	sending sync.WaitGroup
	hearing sync.WaitGroup
}

type post struct {
	path string
	body []byte
}

// newSupervisor starts to listen: to SIGUSR1 and the socket as ask says, to SIGTERM as onTerm says.
// Its close must be called.
func newSupervisor(socket, ask, onTerm string) *supervisor {
	s := &supervisor{signals: make(chan os.Signal, 8), wanted: make(chan bool, 8), posts: make(chan post, 64)}
	if ask == "both" || ask == "signal" {
		signal.Notify(s.signals, syscall.SIGUSR1)
	}
	switch onTerm {
	case "save":
		signal.Notify(s.signals, syscall.SIGTERM)
	case "ignore":
		signal.Ignore(syscall.SIGTERM)
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.hearing.Go(func() { s.hearSignals(ctx) })
	if socket != "" {
		s.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
		s.sending.Go(func() { s.send(ctx) })
		if ask == "both" || ask == "socket" {
			s.hearing.Go(func() { s.hearNotices(ctx) })
		}
	}
	return s
}

// close delivers what is still to be told, for a few seconds at most, and stops listening.
func (s *supervisor) close() {
	close(s.posts)
	timeout := time.AfterFunc(deliverWithin, s.cancel)
	s.sending.Wait()
	timeout.Stop()
	s.cancel()
	signal.Stop(s.signals)
	s.hearing.Wait()
}

// next waits until a checkpoint is wanted, at most d. With stop, the training is to end after it.
func (s *supervisor) next(d time.Duration) (wanted, stop bool) {
	if d > 0 {
		select {
		case stop = <-s.wanted:
			wanted = true
		case <-time.After(d):
		}
	}
	for {
		select {
		case and := <-s.wanted:
			wanted, stop = true, stop || and
		default:
			return wanted, stop
		}
	}
}

func (s *supervisor) want(ctx context.Context, stop bool) {
	select {
	case s.wanted <- stop:
	case <-ctx.Done():
	}
}

func (s *supervisor) hearSignals(ctx context.Context) {
	for {
		select {
		case sig := <-s.signals:
			s.want(ctx, sig == syscall.SIGTERM)
		case <-ctx.Done():
			return
		}
	}
}

func (s *supervisor) hearNotices(ctx context.Context) {
	seq := uint64(0)
	for ctx.Err() == nil {
		started := time.Now()
		n, err := s.poll(ctx, seq)
		if err == nil && n.Seq > seq {
			seq = n.Seq
			if n.Action == "checkpoint" || n.Action == "checkpoint_and_stop" {
				s.want(ctx, n.Action == "checkpoint_and_stop")
			}
		} else if time.Since(started) < time.Second { // it did not wait: do not ask again at once
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

type notice struct {
	Seq    uint64 `json:"seq"`
	Action string `json:"action"`
}

// poll returns the next notice behind seq; its Seq is 0 if there is none yet.
func (s *supervisor) poll(ctx context.Context, seq uint64) (n notice, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://reprieve/notice?wait=30s&after=%d", seq), nil)
	if err != nil {
		return n, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return n, err
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
		return n, json.NewDecoder(response.Body).Decode(&n)
	case http.StatusNoContent:
		return n, nil
	}
	return n, fmt.Errorf("GET /notice: %s", response.Status)
}

// tell has body posted to the supervisor, after what it was told before.
func (s *supervisor) tell(path string, body any) {
	data, err := json.Marshal(body)
	if s.client == nil || err != nil {
		return
	}
	select {
	case s.posts <- post{path, data}:
	default:
	}
}

func (s *supervisor) send(ctx context.Context) {
	for p := range s.posts {
		s.post(ctx, p)
	}
}

func (s *supervisor) post(ctx context.Context, p post) {
	ctx, cancel := context.WithTimeout(ctx, postWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://reprieve"+p.path, bytes.NewReader(p.body))
	if err != nil {
		return
	}
	if response, err := s.client.Do(request); err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // so that the connection is used again
		_ = response.Body.Close()
	}
}
