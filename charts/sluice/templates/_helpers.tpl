{{/* Labels of every object; the argument is a list of the root and the component. */}}
{{- define "sluice.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ printf "sluice-%s" (index . 1) }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels by which pods are selected; the argument is a component. */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ printf "sluice-%s" . }}
app.kubernetes.io/part-of: sluice
{{- end }}

{{/* Reference of an image; the argument is a list of the root and the image's values. The digest wins. */}}
{{- define "sluice.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "sluice.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Where pods run; the argument is the component's values. */}}
{{- define "sluice.place" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Security context of a pod that nothing on the node belongs to. */}}
{{- define "sluice.nobody" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "sluice.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Ingress to the port of the metrics, which is that of the probes. */}}
{{- define "sluice.metricsIngress" -}}
- ports:
    - port: 8080
      protocol: TCP
  {{- with .Values.networkPolicy.metricsFrom }}
  from:
    {{- toYaml . | nindent 4 }}
    # `helm test` asks too.
    - podSelector:
        matchLabels:
          app.kubernetes.io/name: sluice-hooks
  {{- end }}
{{- end }}

{{/* Egress to DNS and to the API server, wherever it is. */}}
{{- define "sluice.apiEgress" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
    {{- range .Values.networkPolicy.apiServerPorts }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
{{- end }}

{{/* What cannot be said in the schema. */}}
{{- define "sluice.validate" -}}
{{- if and .Values.monitoring.rules (not .Values.monitoring.serviceMonitor) (not .Values.monitoring.scrapedElsewhere) -}}
{{- fail "monitoring.rules without monitoring.serviceMonitor would tell for ever that no operator leads; if something else scrapes it, set monitoring.scrapedElsewhere=true" -}}
{{- end -}}
{{- if and .Values.trial.enabled (not .Values.devices.enabled) -}}
{{- fail "trial.enabled needs devices.enabled: the driver offers the GPUs of host memory" -}}
{{- end -}}
{{- if and .Values.trial.enabled (gt (add .Values.devices.neighbourhoods .Values.trial.gpus) 128) -}}
{{- fail (printf "devices.neighbourhoods %v and trial.gpus %v are more than 128 devices of a node together" .Values.devices.neighbourhoods .Values.trial.gpus) -}}
{{- end -}}
{{- end }}
