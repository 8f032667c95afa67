//go:build tools

// Package tools names the commands that are built of this module.
package tools

import _ "github.com/coredns/coredns"
