package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"fmt"
	"strconv"
)

//go:embed digits.csv.gz
var digits []byte

const (
	pixels  = 64
	classes = 10
	held    = 297 // images at the end that are never trained on
)

type image struct {
	x     [pixels]float64 // 0 to 1
	label int
}

// load returns the images to train on and those to measure with.
func load() (train, test []image, err error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(digits))
	if err != nil {
		return nil, nil, err
	}
	rows, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		return nil, nil, err
	}
	all := make([]image, len(rows))
	for i, row := range rows {
		if len(row) != pixels+1 {
			return nil, nil, fmt.Errorf("digits.csv.gz: line %d has %d values", i+1, len(row))
		}
		for j, cell := range row {
			v, err := strconv.ParseFloat(cell, 64)
			if err != nil {
				return nil, nil, fmt.Errorf("digits.csv.gz: line %d: %w", i+1, err)
			}
			if j < pixels {
				all[i].x[j] = v / 16
			} else {
				all[i].label = int(v)
			}
		}
	}
	return all[:len(all)-held], all[len(all)-held:], nil
}
