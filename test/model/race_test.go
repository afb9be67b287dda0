//go:build race

package model_test

func init() { slow = true }
