package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// supervisor talks to `reprieve run` over REPRIEVE_SOCKET. Without one, every method does nothing;
// no error of it ever disturbs the training.
type supervisor struct {
	client *http.Client
	wanted chan bool // a checkpoint is wanted now; true: and then stop
}

func newSupervisor(socket string) *supervisor {
	s := &supervisor{wanted: make(chan bool, 8)}
	if socket != "" {
		s.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	}
	return s
}

// listen waits for notices until ctx ends.
func (s *supervisor) listen(ctx context.Context) {
	if s.client == nil {
		return
	}
	seq := int64(0)
	for ctx.Err() == nil {
		n, err := s.poll(ctx, seq)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		if n.Seq <= seq {
			continue
		}
		seq = n.Seq
		switch n.Action {
		case "checkpoint":
			s.wanted <- false
		case "checkpoint_and_stop":
			s.wanted <- true
		}
	}
}

type notice struct {
	Seq    int64  `json:"seq"`
	Action string `json:"action"`
}

// poll returns the next notice behind seq; its Seq is 0 if there is none yet.
func (s *supervisor) poll(ctx context.Context, seq int64) (notice, error) {
	var n notice
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

// tell posts body to the supervisor.
func (s *supervisor) tell(path string, body any) {
	if s.client == nil {
		return
	}
	data, err := json.Marshal(body)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://reprieve"+path, bytes.NewReader(data))
	if err != nil {
		return
	}
	if response, err := s.client.Do(request); err == nil {
		_ = response.Body.Close()
	}
}
